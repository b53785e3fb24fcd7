// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/guard.h"

#include <algorithm>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/stages.h"

namespace atl::plan {
namespace {

constexpr double kDeadlineRounding = 1e-9;  // of the deadline
constexpr double kTriedFor = 1.2;           // of a deadline: the robot's own time is known only roughly

// Returns the rows of `wanted` that are not held, from the first to the last.
Region missing(Region wanted, std::vector<Region> held) {
  std::sort(held.begin(), held.end(), [](Region a, Region b) { return a.begin < b.begin; });
  for (const Region each : held) {
    if (each.begin <= wanted.begin) wanted.begin = std::max(wanted.begin, each.end);
  }
  for (auto each = held.rbegin(); each != held.rend(); ++each) {
    if (each->end >= wanted.end) wanted.end = std::min(wanted.end, each->begin);
  }
  return wanted.is_empty() ? Region{} : wanted;
}

}  // namespace

double guarded_deadline(std::optional<double> deadline, double alone) noexcept {
  if (!deadline) return 2 * alone;
  return alone <= kTriedFor * *deadline ? *deadline : std::max(0.0, *deadline) + alone;
}

Guard::Guard(const OperatorGraph& graph, std::span<const Share> shares) : graph_(graph), shares_(shares) {}

const Guard::Rest& Guard::rest(std::span<const Event> computed, std::span<const Message> received,
                               const Timeline& timeline) {
  std::vector<int> names;
  for (const Message& each : received) names.push_back(each.operator_index);
  const auto [found, is_new] = rests_.try_emplace({computed.size(), std::move(names)});
  Rest& result = found->second;
  if (!is_new) return result;
  std::vector<std::vector<Region>> held(graph_.operators.size());
  for (const Event& event : computed) {
    const auto v = as_index(event.operator_index);
    held[v].push_back(shares_[v].robot);
  }
  for (const Message& message : received) {
    const auto v = as_index(message.operator_index);
    held[v].insert(held[v].end(), timeline.received[v].begin(), timeline.received[v].end());
  }
  std::vector<Region> wanted(graph_.operators.size());
  for (const int output : graph_.outputs) wanted[as_index(output)] = {0, operator_at(graph_, output).rows};
  for (std::size_t v = wanted.size(); v-- > 0;) {
    const Operator& made = graph_.operators[v];
    if (made.operands.empty()) continue;
    const Region rows = missing(wanted[v], held[v]);
    if (rows.is_empty()) continue;
    const double seconds = made.robot.seconds(rows.size());
    if (seconds > 0) result.seconds.push_back(seconds);
    result.total += seconds;
    for (const Operand& operand : made.operands) {
      Region& of = wanted[as_index(operand.producer)];
      of = hull(of, rows_needed(operand, rows, operator_at(graph_, operand.producer).rows));
    }
  }
  std::reverse(result.seconds.begin(), result.seconds.end());
  return result;
}

Guarded Guard::watch(const Timeline& timeline, double latency, double deadline) {
  std::vector<Event> own;  // the robot's
  std::vector<Message> messages;
  for (const Event& event : timeline.events) {
    if (event.lane == Lane::kRobot) own.push_back(event);
    if (event.lane == Lane::kDown) messages.push_back({event.operator_index, event.end + latency});
  }
  const std::span<const Event> events(own);
  const std::span<const Message> all(messages);
  std::size_t done = 0;
  std::size_t received = 0;
  double free = 0;
  Guarded result{kInfinity, false, kInfinity, 0, 0};
  deadline = guarded_deadline(deadline, rest({}, {}, timeline).total);
  const Rest* left = nullptr;
  while (true) {
    left = &rest(events.first(done), all.first(received), timeline);
    const double latest = std::max(free, deadline - left->total);
    const double arrival = received < all.size() ? all[received].arrival : kInfinity;
    const double begin = done < events.size() ? events[done].begin : kInfinity;
    if (done == events.size() && timeline.seconds <= latest) break;
    if (std::min(arrival, begin) > latest) {
      result.local_begin = latest;
      break;
    }
    if (arrival <= begin) {
      ++received;
      continue;
    }
    const Rest& then = rest(events.first(done + 1), all.first(received), timeline);
    if (events[done].end + then.total > deadline * (1 + kDeadlineRounding)) {
      result.local_begin = latest;
      break;
    }
    result.robot_busy += events[done].end - events[done].begin;
    free = events[done++].end;
  }
  const double answer = done == events.size() ? timeline.seconds : kInfinity;
  const double local_end = result.local_begin + left->total;
  result.is_local = local_end < answer;
  result.seconds = std::min(local_end, answer);
  result.link_end = done == events.size() ? result.seconds : result.local_begin;
  double end = result.local_begin;
  for (const double seconds : left->seconds) {
    if (end >= result.seconds) break;
    result.robot_busy += seconds;
    end += seconds;
  }
  return result;
}

}  // namespace atl::plan
