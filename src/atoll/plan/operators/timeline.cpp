// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/exchange.h"
#include "atoll/plan/operators/stages.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr double kUnknown = -1;

struct Machine {
  Side side;
  Lane lane;
  int next = 0;             // operator
  std::size_t awaited = 0;  // number of the needs' awaits that are done
  double free = 0;
  double busy = 0;
  Needs needs{};
  std::vector<double> begins{};    // by producer: when its rows enter the link
  std::vector<double> arrivals{};  // by producer: when its rows arrive
  std::vector<double> finishes{};  // by operator
};

// One direction of the link, towards a machine.
struct Way {
  Lane lane;
  double bytes = 0;
  double busy = 0;
  std::size_t sent = 0;                         // number of sent entries of `queue`
  std::vector<std::pair<int, double>> queue{};  // producer, and when it is ready
};

class Inference {
 public:
  Inference(const OperatorGraph& graph, const Channel& link, std::span<const Share> shares)
      : graph_(graph), link_(link), shares_(shares) {
    std::array<Needs, 2> needs = needs_of(graph, shares);
    for (const std::size_t machine : {kRobot, kServer}) {
      machines_[machine].needs = std::move(needs[machine]);
      machines_[machine].begins.assign(shares.size(), 0);
      machines_[machine].arrivals.assign(shares.size(), kUnknown);
      machines_[machine].finishes.assign(shares.size(), 0);
    }
  }

  Timeline run(const RobotPower& power, int chunks) {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      if (is_input(static_cast<int>(i)) && !lacks(kServer, static_cast<int>(i)).empty()) {
        ways_[kServer].queue.emplace_back(static_cast<int>(i), 0);
        send(kServer);
      }
    }
    if (chunks > 1) stream(chunks);
    do {
      advance(kRobot);
      advance(kServer);
    } while (send_next());
    return summed_up(power);
  }

 private:
  static constexpr std::size_t kRobot = 0;
  static constexpr std::size_t kServer = 1;

  const Operator& op(int index) const { return operator_at(graph_, index); }
  bool is_input(int index) const { return op(index).is_input(); }
  Region own(std::size_t machine, int index) const {
    return made_by(shares_[as_index(index)], machines_[machine].side);
  }
  double seconds(std::size_t machine, int index, std::int64_t rows) const {
    return (machine == kRobot ? op(index).robot : op(index).server).seconds(rows);
  }
  const std::vector<Region>& lacks(std::size_t machine, int producer) const {
    return machines_[machine].needs.lacks[as_index(producer)];
  }
  double bytes_of(std::size_t machine, int producer) const {
    return message_bytes(op(producer), lacks(machine, producer));
  }

  // Sends the next message to `machine`.
  void send(std::size_t machine) {
    Way& way = ways_[machine];
    double& free = link_free_[link_.is_half_duplex ? 0 : machine];
    const auto [producer, ready] = way.queue[way.sent++];
    const double bytes = bytes_of(machine, producer);
    const double begin = std::max(ready, free);
    free = std::isfinite(begin) ? link_.end(way.lane, begin, bytes) : begin;
    if (std::isfinite(begin)) way.busy += free - begin;
    way.bytes += bytes;
    machines_[machine].begins[as_index(producer)] = begin;
    machines_[machine].arrivals[as_index(producer)] = free + link_.latency;
    timeline_.events.push_back({way.lane, producer, begin, free});
  }

  // Sends a message when both machines wait, so that nothing can become ready before those that are. False if there is
  // none.
  bool send_next() {
    const auto has = [&](std::size_t machine) { return ways_[machine].sent < ways_[machine].queue.size(); };
    const auto ready = [&](std::size_t machine) { return ways_[machine].queue[ways_[machine].sent].second; };
    if (!has(kServer) && !has(kRobot)) return false;
    send(has(kServer) && (!has(kRobot) || ready(kServer) <= ready(kRobot)) ? kServer : kRobot);
    return true;
  }

  void finish(std::size_t machine, int index, double time) {
    machines_[machine].finishes[as_index(index)] = time;
    if (!lacks(1 - machine, index).empty()) ways_[1 - machine].queue.emplace_back(index, time);
  }

  // Runs operators until one waits for a message that has not been sent.
  void advance(std::size_t index) {
    Machine& machine = machines_[index];
    const std::vector<Await>& awaits = machine.needs.awaits;
    for (; machine.next < static_cast<int>(shares_.size()); ++machine.next) {
      const Region region = own(index, machine.next);
      if (region.is_empty() || is_input(machine.next)) continue;
      double begin = machine.free;
      std::size_t awaited = machine.awaited;
      for (; awaited < awaits.size() && awaits[awaited].user == machine.next; ++awaited) {
        const double arrival = machine.arrivals[as_index(awaits[awaited].producer)];
        if (arrival == kUnknown) return;
        begin = std::max(begin, arrival);
      }
      machine.awaited = awaited;
      const double length = seconds(index, machine.next, region.size());
      machine.free = begin + length;
      machine.busy += length;
      timeline_.events.push_back({machine.lane, machine.next, begin, machine.free});
      finish(index, machine.next, machine.free);
    }
  }

  // After each chunk the server computes what has become possible.
  void stream(int chunks) {
    Stream stream = stream_of(graph_, shares_, machines_[kServer].needs, chunks);
    if (stream.operators.empty()) return;
    Machine& server = machines_[kServer];
    server.next = stream.next;
    const std::vector<Await>& awaits = server.needs.awaits;
    while (server.awaited < awaits.size() && awaits[server.awaited].user < server.next) ++server.awaited;
    for (const Chunk& chunk : stream.chunks) {
      const auto rows = static_cast<double>(rows_of(lacks(kServer, chunk.input)));
      const double bytes = (rows - static_cast<double>(chunk.rows_after)) / rows * bytes_of(kServer, chunk.input);
      const double first = server.begins[as_index(chunk.input)];
      const double there = std::isfinite(first) ? link_.end(Lane::kUp, first, bytes) : first;
      server.free = std::max(server.free, there + link_.latency);
      for (const OperatorRows& possible : chunk.possible) {
        const double begin = server.free;
        const double length = seconds(kServer, possible.index, possible.rows.size());
        server.free += length;
        server.busy += length;
        server.finishes[as_index(possible.index)] = server.free;
        timeline_.events.push_back({Lane::kServer, possible.index, begin, server.free});
      }
    }
    std::ranges::stable_sort(stream.operators, {}, [&](int index) { return server.finishes[as_index(index)]; });
    for (const int index : stream.operators) finish(kServer, index, server.finishes[as_index(index)]);
  }

  Timeline summed_up(const RobotPower& power) {
    Machine& robot = machines_[kRobot];
    for (const int output : graph_.outputs) {
      timeline_.seconds =
          std::max({timeline_.seconds, robot.finishes[as_index(output)], robot.arrivals[as_index(output)]});
    }
    timeline_.robot_busy = robot.busy;
    timeline_.server_busy = machines_[kServer].busy;
    timeline_.up_bytes = ways_[kServer].bytes;
    timeline_.down_bytes = ways_[kRobot].bytes;
    for (int i = 0; i < static_cast<int>(shares_.size()); ++i) {
      timeline_.rows_twice += seconds(kRobot, i, intersection(own(kRobot, i), own(kServer, i)).size());
    }
    timeline_.link_busy = ways_[kServer].busy + ways_[kRobot].busy;
    timeline_.joules = joules(power, timeline_.seconds, robot.busy, timeline_.link_busy);
    timeline_.received = std::move(robot.needs.lacks);
    return std::move(timeline_);
  }

  const OperatorGraph& graph_;
  const Channel& link_;
  std::span<const Share> shares_;
  Machine machines_[2] = {{Side::kRobot, Lane::kRobot}, {Side::kServer, Lane::kServer}};
  Way ways_[2] = {{Lane::kDown}, {Lane::kUp}};
  double link_free_[2] = {0, 0};
  Timeline timeline_;
};

}  // namespace

Channel steady(const LinkCost& link) {
  check(link);
  return {[up = link.up_bytes_per_second, down = link.down_bytes_per_second](Lane way, double begin, double bytes) {
            return begin + bytes / (way == Lane::kUp ? up : down);
          },
          link.latency, link.is_half_duplex};
}

double joules(const RobotPower& power, double seconds, double robot_busy, double link_busy) noexcept {
  return power.compute_watts * robot_busy + power.idle_watts * std::max(0.0, seconds - robot_busy) +
         power.radio_watts * link_busy;
}

Timeline simulate(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks) {
  return simulate(graph, steady(link), power, shares, chunks);
}

Timeline simulate(const OperatorGraph& graph, const Channel& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks) {
  if (chunks < 1) refuse("an input is sent in " + std::to_string(chunks) + " chunks: give at least 1");
  return Inference(graph, link, shares).run(power, chunks);
}

void predict(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, OperatorPlan& plan) {
  static_cast<Prediction&>(plan) = simulate(graph, link, power, plan.shares, plan.chunks);
}

}  // namespace atl::plan
