// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atoll/plan/simulate/actions.h"

/// Steps of a training, simulated event by event: pipelines with their order of actions, transfers over rails that are
/// shared, reductions of gradients. docs/simulate.md has the model, the keys of the JSON and what they mean. Times are
/// seconds, sizes bytes, rates bytes per second.
namespace atl::plan::simulated {

/// One number for all, or one for each name: of a class of devices, or of an island.
struct Amounts {
  double all = 0;
  std::map<std::string, double> by_name{};  ///< where it is not empty, `all` does not count

  /// The number for `name`; where there is none, nothing.
  std::optional<double> find(const std::string& name) const;
  /// The same where check() has passed.
  double of(const std::string& name) const { return find(name).value_or(0); }
};

struct Rank {
  std::string name;
  std::string island;
  std::string host;
  std::string device_class;
  double slowdown = 1;
  std::optional<double> memory_bytes{};
};

enum class Each : std::uint8_t { kRank, kHost, kIsland, kJob };

/// Something that carries bytes, of which there is one for each rank, host or island.
struct Rail {
  std::string name;
  Each each = Each::kRank;
  int count = 1;  ///< side by side
  Amounts out{};  ///< bytes per second of one of them, away from the rank, by island
  Amounts in{};
  bool is_half_duplex = false;  ///< both ways share what goes out
};

enum class End : std::uint8_t { kSender, kReceiver, kBoth };

struct Hop {
  int rail = 0;
  End end = End::kBoth;  ///< whose rails are occupied
  double latency = 0;
  int stripes = 0;  ///< of the rail's count that one transfer uses; 0 for all
  double most_bytes_per_second = std::numeric_limits<double>::infinity();
};

/// A chain that bytes take.
struct Transport {
  std::string name;
  std::vector<Hop> hops;
  double chunk_bytes = 0;  ///< 0: each hop carries everything before the next begins
  bool is_blocking = false;
};

enum class Between : std::uint8_t { kHost, kIsland, kAny };

/// Which transport two ranks use.
struct LinkRule {
  Between between = Between::kAny;
  std::vector<std::string> islands{};  ///< only between these two, where there are any
  bool for_transfers = true;
  bool for_reductions = true;
  int transport = 0;
};

/// What one micro-batch costs on a stage, by class of device, and what the stage holds.
struct Stage {
  std::string name;
  Amounts forward{};
  Amounts backward{};
  std::optional<Amounts> weight{};  ///< part of the backward; half of it where nothing is given
  Amounts accumulate{};             ///< more for the gradients of weights of each micro-batch after the first
  Amounts optimiser{};
  double boundary_bytes = 0;           ///< to the next stage
  double boundary_gradient_bytes = 0;  ///< back from it
  double gradient_bytes = 0;
  double weight_bytes = 0;
  double activation_bytes = 0;
};

struct Pipeline {
  std::vector<int> ranks;  ///< by place
  int micro_batches = 1;
  std::vector<Stage> stages;
  std::vector<std::vector<Action>> actions;  ///< by place
};

struct Member {
  int pipeline = 0;
  int stage = 0;
};

/// Gradients that are added over their members.
struct Reduction {
  std::string name;
  double bytes = 0;
  std::vector<Member> members;
};

struct ReductionOptions {
  bool is_hierarchical = true;  ///< else a ring over all members
  int buckets = 1;
  bool overlaps = true;       ///< with the last backward
  bool is_pipelined = false;  ///< the phases of hierarchical ones run at once
  int leads = 0;              ///< of each island; 0 for as many as the smallest has
};

struct Plan {
  std::vector<Rank> ranks;
  std::vector<Pipeline> pipelines;
  std::vector<Rail> rails{};
  std::vector<Transport> transports{};
  std::vector<LinkRule> links{};  ///< the first that fits counts; bytes take no time where there are none
  std::vector<Reduction> reductions{};
  ReductionOptions reduction{};
  bool clips = false;  ///< no optimiser begins before all reductions are done
  int steps = 1;
};

/// Of each stage its gradients over all pipelines. Error(kInvalidArgument) where the pipelines have not as many stages.
std::vector<Reduction> reductions_by_stage(const std::vector<Pipeline>& pipelines);

/// Error(kInvalidArgument) that names what cannot be simulated, its value, and what would do.
void check(const Plan& plan);

enum class What : std::uint8_t { kForward, kBackward, kInput, kWeight, kOptimiser, kTransfer, kReduction };
/// "forward", "backward", "backward (input)", "backward (weight)", "optimiser", "transfer", "reduction".
const char* to_string(What what) noexcept;

/// -1 where something does not apply.
struct Event {
  What what = What::kForward;
  std::int32_t rank = -1;  ///< that computes or sends; none of a reduction
  std::int32_t peer = -1;  ///< that receives
  std::int32_t pipeline = -1;
  std::int32_t stage = -1;        ///< of a transfer, that sends; of a reduction, its place among Plan::reductions
  std::int32_t micro_batch = -1;  ///< of a reduction, the bucket
  std::int32_t step = 0;
  std::int32_t cause = -1;  ///< the event for which it waited last
  double begin = 0;
  double end = 0;
  double bytes = 0;
};

/// `computes`, `optimises`, `transfers`, `reduces` and `idle` add up to Simulation::seconds.
struct RankUse {
  int pipeline = -1;
  double computes = 0;
  double optimises = 0;
  double transfers = 0;  ///< waits while what it waits for is on its way
  double reduces = 0;    ///< waits for reductions
  double idle = 0;
  double communicates = 0;  ///< something is on its way from or to it, for pipelines
  double sent_bytes = 0;    ///< for pipelines
  double peak_bytes = 0;
};

struct StageUse {
  int pipeline = 0;
  int stage = 0;
  int rank = 0;
  int in_flight = 0;  ///< most micro-batches whose activations it keeps
};

struct PathPart {
  What what = What::kForward;
  std::string where;
  double seconds = 0;
  std::int64_t count = 0;
};

struct RailUse {
  std::string name;   ///< of the rail
  std::string where;  ///< of which rank, host or island
  std::string direction;
  double bytes = 0;
  double share = 0;  ///< of what it could have carried
};

struct Simulation {
  double seconds = 0;
  double step_seconds = 0;
  double bound = 0;
  double bubble = 0;
  std::vector<RankUse> ranks;
  std::vector<StageUse> stages;
  std::vector<PathPart> path;  ///< longest first; adds up to `seconds`
  std::vector<RailUse> rails;  ///< the busiest of each kind and direction
  std::vector<Event> events;   ///< in order of their begin
};

/// Simulates the plan. Error(kInvalidArgument) as check(), and where the actions cannot go on: it names the ranks that
/// wait for each other. The same plan gives the same answer.
///
/// Cost: O(E log E + E c log c) for E events with c transfers on rails that are full at the same time.
Simulation simulate(const Plan& plan);

/// What no order of the same actions goes below in one step: for each rank, the way of the first micro-batch to it, all
/// its work, and the way back from it.
double lower_bound(const Plan& plan);

}  // namespace atl::plan::simulated
