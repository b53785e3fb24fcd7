// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/timeline.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr double kUnknown = -1;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string text(Region region) { return "[" + std::to_string(region.begin) + ", " + std::to_string(region.end) + ")"; }

// An operator that waits for what `producer` sends.
struct Await {
  int user;
  int producer;
};

struct Machine {
  std::string name;
  Lane lane;
  int next = 0;             // operator
  std::size_t awaited = 0;  // how many of `awaits` are over
  double free = 0;
  double busy = 0;
  std::vector<Await> awaits{};               // by user
  std::vector<std::vector<Region>> lacks{};  // by producer: rows that come from the other machine, in order
  std::vector<double> begins{};              // by producer: when what lacks goes onto the link
  std::vector<double> arrivals{};            // by producer: of what lacks
  std::vector<double> finishes{};            // by operator
};

// One way of the link, towards a machine.
struct Way {
  Lane lane;
  double bytes = 0;
  double busy = 0;
  std::size_t sent = 0;                         // how many of `queue` are over
  std::vector<std::pair<int, double>> queue{};  // what is sent, and when it is ready
};

// What is left of `pieces` without `own`: separate regions in order.
std::vector<Region> without(const std::vector<Region>& pieces, Region own) {
  std::vector<Region> parts;
  for (const Region piece : pieces) {
    if (own.is_empty()) {
      parts.push_back(piece);
      continue;
    }
    parts.push_back({piece.begin, std::min(piece.end, own.begin)});
    parts.push_back({std::max(piece.begin, own.end), piece.end});
  }
  std::erase_if(parts, [](Region part) { return part.is_empty(); });
  std::sort(parts.begin(), parts.end(), [](Region a, Region b) { return a.begin < b.begin; });
  std::vector<Region> merged;
  for (const Region part : parts) {
    if (merged.empty() || part.begin > merged.back().end) {
      merged.push_back(part);
    } else {
      merged.back().end = std::max(merged.back().end, part.end);
    }
  }
  return merged;
}

std::int64_t rows_of(const std::vector<Region>& regions) {
  std::int64_t rows = 0;
  for (const Region region : regions) rows += region.size();
  return rows;
}

// The row behind the first `count` rows of the regions.
std::int64_t end_of_first(std::int64_t count, const std::vector<Region>& regions) {
  for (const Region region : regions) {
    if (count <= region.size()) return region.begin + count;
    count -= region.size();
  }
  return regions.back().end;
}

class Inference {
 public:
  Inference(const OperatorGraph& graph, const Channel& link, std::span<const Share> shares)
      : graph_(graph), link_(link), shares_(shares) {
    check_shares();
    for (Machine& machine : machines_) {
      machine.lacks.resize(shares.size());
      machine.begins.assign(shares.size(), 0);
      machine.arrivals.assign(shares.size(), kUnknown);
      machine.finishes.assign(shares.size(), 0);
    }
    for (std::size_t i = 0; i < shares.size(); ++i) find_needs(static_cast<int>(i));
    for (const int output : graph.outputs) want(kRobot, output, all_of(output));
    for (const std::size_t machine : {kRobot, kServer}) find_lacks(machine);
  }

  Timeline run(const RobotPower& power, int chunks) {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      if (is_input(static_cast<int>(i)) && !machines_[kServer].lacks[i].empty()) {
        ways_[kServer].queue.emplace_back(static_cast<int>(i), 0);
        send(kServer);
      }
    }
    if (chunks > 1 && !ways_[kServer].queue.empty()) stream(chunks);
    do {
      advance(kRobot);
      advance(kServer);
    } while (send_next());
    return summed_up(power);
  }

 private:
  static constexpr std::size_t kRobot = 0;
  static constexpr std::size_t kServer = 1;

  const Operator& op(int index) const { return graph_.operators[at(index)]; }
  bool is_input(int index) const { return op(index).operands.empty(); }
  Region all_of(int index) const { return {0, op(index).rows}; }
  Region own(std::size_t machine, int index) const {
    return machine == kRobot ? shares_[at(index)].robot : shares_[at(index)].server;
  }
  double seconds(std::size_t machine, int index, std::int64_t rows) const {
    return (machine == kRobot ? op(index).robot : op(index).server).seconds(rows);
  }
  std::string name_of(int index) const { return "operator " + std::to_string(index) + " (" + op(index).name + ")"; }
  Region needed(const Operand& operand, Region region) const {
    const Region all = all_of(operand.producer);
    return operand.needed ? intersection(operand.needed(region), all) : all;
  }

  void check_shares() const {
    if (shares_.size() != graph_.operators.size()) {
      refuse(counted(static_cast<std::int64_t>(shares_.size()), "share") + " for " +
             counted(static_cast<std::int64_t>(graph_.operators.size()), "operator") + ": give one for each");
    }
    for (int i = 0; i < static_cast<int>(shares_.size()); ++i) {
      for (const std::size_t machine : {kRobot, kServer}) {
        if (all_of(i).holds(own(machine, i))) continue;
        refuse(name_of(i) + " has " + counted(op(i).rows, "row") + ", and its share on the " + machines_[machine].name +
               " is " + text(own(machine, i)));
      }
      if (is_input(i) && (own(kRobot, i) != all_of(i) || !own(kServer, i).is_empty())) {
        refuse(name_of(i) + " is an input: give the robot all its rows and the server none");
      }
    }
  }

  // Until find_lacks, `lacks` holds what is needed of operators that are not wholly at hand.
  bool want(std::size_t machine, int producer, Region region) {
    if (own(machine, producer).holds(region)) return false;
    machines_[machine].lacks[at(producer)].push_back(region);
    return true;
  }

  void find_needs(int user) {
    for (const std::size_t machine : {kRobot, kServer}) {
      const Region region = own(machine, user);
      if (region.is_empty()) continue;
      for (const Operand& operand : op(user).operands) {
        if (want(machine, operand.producer, needed(operand, region))) {
          machines_[machine].awaits.push_back({user, operand.producer});
        }
      }
    }
  }

  void find_lacks(std::size_t machine) {
    for (int i = 0; i < static_cast<int>(shares_.size()); ++i) {
      std::vector<Region>& lacks = machines_[machine].lacks[at(i)];
      if (lacks.empty()) continue;
      lacks = without(lacks, own(machine, i));
      for (const Region part : lacks) {
        if (own(1 - machine, i).holds(part)) continue;
        refuse("the " + machines_[machine].name + " needs rows " + text(part) + " of " + name_of(i) + " and computes " +
               text(own(machine, i)) + ", the " + machines_[1 - machine].name + " computes " +
               text(own(1 - machine, i)) + ": give every row that is needed to one of them");
      }
    }
  }

  double bytes_of(std::size_t machine, int producer) const {
    const auto rows = static_cast<double>(rows_of(machines_[machine].lacks[at(producer)]));
    return rows / static_cast<double>(op(producer).rows) * static_cast<double>(op(producer).bytes);
  }

  // Puts the next message on the way to `machine` onto the link.
  void send(std::size_t machine) {
    Way& way = ways_[machine];
    double& free = link_free_[link_.is_half_duplex ? 0 : machine];
    const auto [producer, ready] = way.queue[way.sent++];
    const double bytes = bytes_of(machine, producer);
    const double begin = std::max(ready, free);
    free = std::isfinite(begin) ? link_.end(way.lane, begin, bytes) : begin;
    if (std::isfinite(begin)) way.busy += free - begin;
    way.bytes += bytes;
    machines_[machine].begins[at(producer)] = begin;
    machines_[machine].arrivals[at(producer)] = free + link_.latency;
    timeline_.events.push_back({way.lane, producer, begin, free});
  }

  // Both machines wait, so nothing can still become ready before what is. False when nothing is.
  bool send_next() {
    const auto has = [&](std::size_t machine) { return ways_[machine].sent < ways_[machine].queue.size(); };
    const auto ready = [&](std::size_t machine) { return ways_[machine].queue[ways_[machine].sent].second; };
    if (!has(kServer) && !has(kRobot)) return false;
    send(has(kServer) && (!has(kRobot) || ready(kServer) <= ready(kRobot)) ? kServer : kRobot);
    return true;
  }

  void finish(std::size_t machine, int index, double time) {
    machines_[machine].finishes[at(index)] = time;
    if (!machines_[1 - machine].lacks[at(index)].empty()) ways_[1 - machine].queue.emplace_back(index, time);
  }

  // Runs operators until one waits for a message that is not on the link yet.
  void advance(std::size_t index) {
    Machine& machine = machines_[index];
    for (; machine.next < static_cast<int>(shares_.size()); ++machine.next) {
      const Region region = own(index, machine.next);
      if (region.is_empty() || is_input(machine.next)) continue;
      double begin = machine.free;
      std::size_t awaited = machine.awaited;
      for (; awaited < machine.awaits.size() && machine.awaits[awaited].user == machine.next; ++awaited) {
        const double arrival = machine.arrivals[at(machine.awaits[awaited].producer)];
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

  // The server's first operators that are computed row by row from inputs and one another. Moves its `next` behind
  // them.
  std::vector<int> streamed_operators() {
    Machine& server = machines_[kServer];
    std::vector<int> streamed;
    for (; server.next < static_cast<int>(shares_.size()); ++server.next) {
      if (own(kServer, server.next).is_empty() || is_input(server.next)) continue;
      const auto& operands = op(server.next).operands;
      if (!std::all_of(operands.begin(), operands.end(), [](const Operand& each) { return bool(each.needed); })) break;
      std::size_t awaited = server.awaited;
      bool from_inputs = true;
      for (; awaited < server.awaits.size() && server.awaits[awaited].user == server.next; ++awaited) {
        from_inputs = from_inputs && is_input(server.awaits[awaited].producer);
      }
      if (!from_inputs) break;
      server.awaited = awaited;
      streamed.push_back(server.next);
    }
    return streamed;
  }

  // The row up to which the operator can be computed when its operands are there up to `reach`.
  std::int64_t possible_end(int index, const std::vector<std::int64_t>& reach) const {
    const Region region = own(kServer, index);
    const auto is_possible = [&](std::int64_t end) {
      return std::all_of(op(index).operands.begin(), op(index).operands.end(), [&](const Operand& operand) {
        const Region rows = needed(operand, {region.begin, end});
        return rows.is_empty() || rows.end <= reach[at(operand.producer)];
      });
    };
    std::int64_t low = std::max(region.begin, reach[at(index)]);
    std::int64_t high = region.end;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (is_possible(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // After each chunk the server computes what has become possible.
  void stream(int chunks) {
    std::vector<int> streamed = streamed_operators();
    if (streamed.empty()) return;
    Machine& server = machines_[kServer];
    std::vector<std::int64_t> reach(shares_.size(), 0);
    for (const auto& [input, ready] : ways_[kServer].queue) {
      const std::vector<Region>& parts = server.lacks[at(input)];
      const std::int64_t rows = rows_of(parts);
      const std::int64_t count = std::min<std::int64_t>(chunks, rows);
      for (std::int64_t chunk = 1; chunk <= count; ++chunk) {
        const std::int64_t there = rows * chunk / count;
        const double bytes = static_cast<double>(there) / static_cast<double>(rows) * bytes_of(kServer, input);
        const double begin = server.begins[at(input)];
        const double end = std::isfinite(begin) ? link_.end(Lane::kUp, begin, bytes) : begin;
        reach[at(input)] = end_of_first(there, parts);
        server.free = std::max(server.free, end + link_.latency);
        for (const int index : streamed) compute_possible(index, reach);
      }
    }
    std::stable_sort(streamed.begin(), streamed.end(),
                     [&](int a, int b) { return server.finishes[at(a)] < server.finishes[at(b)]; });
    for (const int index : streamed) finish(kServer, index, server.finishes[at(index)]);
  }

  void compute_possible(int index, std::vector<std::int64_t>& reach) {
    Machine& server = machines_[kServer];
    const std::int64_t from = std::max(own(kServer, index).begin, reach[at(index)]);
    const std::int64_t end = possible_end(index, reach);
    if (end == from) return;
    const double begin = server.free;
    const double length = seconds(kServer, index, end - from);
    server.free += length;
    server.busy += length;
    server.finishes[at(index)] = server.free;
    reach[at(index)] = end;
    timeline_.events.push_back({Lane::kServer, index, begin, server.free});
  }

  Timeline summed_up(const RobotPower& power) {
    Machine& robot = machines_[kRobot];
    for (const int output : graph_.outputs) {
      timeline_.seconds = std::max({timeline_.seconds, robot.finishes[at(output)], robot.arrivals[at(output)]});
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
    timeline_.received = std::move(robot.lacks);
    return std::move(timeline_);
  }

  const OperatorGraph& graph_;
  const Channel& link_;
  std::span<const Share> shares_;
  Machine machines_[2] = {{"robot", Lane::kRobot}, {"server", Lane::kServer}};
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
  const Timeline timeline = simulate(graph, link, power, plan.shares, plan.chunks);
  plan.seconds = timeline.seconds;
  plan.robot_busy = timeline.robot_busy;
  plan.server_busy = timeline.server_busy;
  plan.up_bytes = timeline.up_bytes;
  plan.down_bytes = timeline.down_bytes;
  plan.joules = timeline.joules;
  plan.rows_twice = timeline.rows_twice;
}

}  // namespace atl::plan
