// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/links.h"
#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

/// The seconds of a stage on its rank. `input` and `weight` are the parts of `backward`.
struct StageSeconds {
  double forward = 0;
  double backward = 0;
  double input = 0;
  double weight = 0;
  double accumulate = 0;
  double optimiser = 0;
};
StageSeconds seconds_of(const Stage& stage, const Rank& rank);

/// Runs a plan that check() accepts: construct it, call run() once, then result().
class Engine {
 public:
  struct StageRun {  // one stage on its rank
    const Stage* given = nullptr;
    int rank = 0;
    StageSeconds seconds{};
    const Path* there = nullptr;  // to the next stage; null on the same rank
    const Path* back = nullptr;   // to the previous stage
    std::vector<int> groups{};
    int in_flight = 0;
    int most_in_flight = 0;
    int gradients = 0;  // of weights, started
  };

  explicit Engine(const Plan& plan);

  const std::vector<StageRun>& stages(std::size_t pipeline) const { return lines_[pipeline].stages; }

  /// Throws Error(kInvalidArgument) that names the ranks that wait for each other if the actions deadlock.
  void run();

  /// Returns the events and the statistics of ranks, stages and rails; the rest of the simulation is not filled in.
  Simulation result();

 private:
  // An input that a stage needs from another one for one micro-batch; event numbers, -1 for none.
  struct Edge {
    std::int32_t arrived = -1;  // the transfer that delivered it
    std::int32_t offered = -1;  // the computation that made it, while a blocking transport waits for the receiver
    bool is_wanted = false;     // the receiver of a blocking transport is waiting
  };
  struct Unit {  // one micro-batch on one stage
    Edge input{};
    Edge gradient{};
    std::int32_t forward = -1;
    std::int32_t backward = -1;
  };
  struct Line {  // one pipeline
    std::vector<StageRun> stages{};
    std::vector<Unit> units{};
  };
  struct Lane {  // one rank
    int pipeline = -1;
    const std::vector<Action>* actions = nullptr;
    std::vector<int> stages{};
    int reductions = 0;
    std::size_t next = 0;  // action; after the last one comes the optimiser
    int step = 0;
    bool is_busy = false;
    bool is_done = false;
    bool is_at_barrier = false;
    bool has_gradients = false;   // has announced those of all its stages, if reductions do not overlap
    std::int32_t last = -1;       // event of its own
    std::int32_t last_send = -1;  // the last send that it waited for
    std::int32_t last_reduction = -1;
    int sends = 0;  // sends that it waits for
    int open_reductions = 0;
    int on_their_way = 0;
    double since = 0;  // start of the current transfers
    double held_bytes = 0;
    RankUse use{};
  };
  struct Transfer {
    const Path* path;
    int pipeline;
    std::size_t unit;
    bool is_gradient;
    std::int32_t event;
    std::size_t leg;
  };
  struct Group {  // of one reduction
    std::vector<Member> members{};
    std::vector<int> ranks{};
    std::vector<Phase> phases{};  // of a bucket
    std::vector<int> ready{};     // by bucket, members whose gradients are ready
    std::size_t bucket = 0;
    std::size_t phase = 0;
    std::size_t flows = 0;
    bool is_running = false;
    std::int32_t event = -1;
  };
  struct Ready {
    int group;
    std::size_t bucket;
    std::int32_t cause;
  };
  enum class Kind : std::uint8_t { kComputed, kLegOver, kPhaseOver, kReady };
  struct Entry {
    double time;
    std::uint64_t order;  // insertion order, which breaks ties
    Kind kind;
    int index;
    auto operator<=>(const Entry&) const = default;
  };
  struct Owner {
    bool is_reduction = false;
    int index = 0;
  };

  Lane& lane(int rank) { return lanes_[as_index(rank)]; }
  Line& line(int pipeline) { return lines_[as_index(pipeline)]; }
  std::size_t unit_at(const Lane& lane, const Action& action) const;
  StageRun& stage_of(const Lane& lane, int stage) { return line(lane.pipeline).stages[as_index(stage)]; }
  Unit& unit_of(const Lane& lane, const Action& action) { return line(lane.pipeline).units[unit_at(lane, action)]; }
  double end_of(std::int32_t event) const { return event < 0 ? 0 : events_[as_index(event)].end; }
  void after(double seconds, Kind kind, int index);
  std::int32_t add(Event event);

  void make_line(int pipeline);
  void make_groups();

  // Ranks.
  void wake(int rank);
  bool is_there(int rank, const Action& action);
  void begin(int rank, const Action& action);
  void begin_optimiser(int rank);
  void optimise(int rank, std::int32_t cause);
  void end_action(int rank);
  void end_step(int rank);
  void account(Lane& lane, std::int32_t cause);
  std::int32_t latest(const Lane& lane, std::int32_t other) const;
  Edge* edge_of(const Lane& lane, const Action& action);

  // Transfers.
  void deliver(int rank, const Action& action);
  void want(int rank, const Action& action);
  void send(const Transfer& transfer, int from, int to, double bytes, std::int32_t cause);
  void go_on(int transfer);
  void arrive(int transfer);
  Edge& edge_of(const Transfer& transfer);
  const Path* path_to(const Line& line, const Action& consumer) const;
  double bytes_to(const Line& line, const Action& consumer) const;

  // Gradients.
  void announce(int rank, const Action& action, double seconds);
  void announce_all(int rank);
  void ready(const Ready& ready);
  void reduce(int group, std::int32_t cause);
  void run_phase(int group);
  void end_phase(int group);

  [[noreturn]] void stuck();
  std::string waits(int rank, int& other);

  const Plan& plan_;
  Links links_;
  std::vector<Line> lines_;
  std::vector<Lane> lanes_;
  std::vector<Transfer> transfers_;
  std::vector<int> free_transfers_;
  std::vector<Group> groups_;
  std::vector<Ready> readies_;
  std::vector<Owner> owners_;  // of flows
  std::vector<Event> events_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> calendar_;
  std::uint64_t order_ = 0;
  double now_ = 0;
  int active_ = 0;      // ranks with a place in a pipeline
  int at_barrier_ = 0;  // of these
};

}  // namespace atl::plan::simulated
