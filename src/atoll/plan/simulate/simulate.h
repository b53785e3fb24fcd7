// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atoll/plan/simulate/actions.h"

/// Steps of a training, simulated event by event: pipelines with their order of actions, transfers over shared rails,
/// reductions of gradients. docs/simulate.md describes the model, the keys of the JSON and their meaning. Times are in
/// seconds, sizes in bytes, rates in bytes per second.
namespace atl::plan::simulated {

/// One number for all, or one for each name: of a class of devices, or of an island.
struct Amounts {
  double all = 0;
  std::map<std::string, double> by_name{};  ///< if it is not empty, `all` is ignored

  /// Returns the number for `name`, if there is one.
  std::optional<double> find(const std::string& name) const;
  /// Returns the same for a plan that passed check().
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

/// Hardware that carries bytes, one for each rank, host or island.
struct Rail {
  std::string name;
  Each each = Each::kRank;
  int count = 1;  ///< side by side
  Amounts out{};  ///< bytes per second of one of them, from the rank outwards, by island
  Amounts in{};
  bool is_half_duplex = false;  ///< both directions share the outward rate
};

enum class End : std::uint8_t { kSender, kReceiver, kBoth };

struct Hop {
  int rail = 0;
  End end = End::kBoth;  ///< the end whose rails are occupied
  double latency = 0;
  int stripes = 0;  ///< rails that one transfer uses, of the rail's count; 0: all
  double most_bytes_per_second = std::numeric_limits<double>::infinity();
};

/// A chain of hops for bytes.
struct Transport {
  std::string name;
  std::vector<Hop> hops;
  double chunk_bytes = 0;  ///< 0: each hop carries everything before the next starts
  bool is_blocking = false;
};

enum class Between : std::uint8_t { kHost, kIsland, kAny };

/// Selects the transport between two ranks.
struct LinkRule {
  Between between = Between::kAny;
  std::vector<std::string> islands{};  ///< only between these two; empty: any
  bool for_transfers = true;
  bool for_reductions = true;
  int transport = 0;
};

/// The costs of one micro-batch on a stage, by class of device, and the memory of the stage.
struct Stage {
  std::string name;
  Amounts forward{};
  Amounts backward{};
  std::optional<Amounts> weight{};  ///< part of the backward; half of it by default
  Amounts accumulate{};             ///< extra for the gradients of weights of each micro-batch after the first
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
  bool is_hierarchical = true;  ///< false: a ring over all members
  int buckets = 1;
  bool overlaps = true;       ///< with the last backward
  bool is_pipelined = false;  ///< the phases of hierarchical reductions overlap
  int leads = 0;              ///< per island; 0: as many as the smallest island has ranks
};

struct Plan {
  std::vector<Rank> ranks;
  std::vector<Pipeline> pipelines;
  std::vector<Rail> rails{};
  std::vector<Transport> transports{};
  std::vector<LinkRule> links{};  ///< the first that matches applies; without rules, bytes take no time
  std::vector<Reduction> reductions{};
  ReductionOptions reduction{};
  bool clips = false;  ///< no optimiser starts before all reductions are done
  int steps = 1;
};

/// Returns for each stage the reduction of its gradients over all pipelines. Throws Error(kInvalidArgument) if the
/// pipelines have different numbers of stages.
std::vector<Reduction> reductions_by_stage(const std::vector<Pipeline>& pipelines);

/// Throws Error(kInvalidArgument) that names the invalid field, its value, and what is allowed.
void check(const Plan& plan);

/// The first four are those of Work.
enum class What : std::uint8_t { kForward, kBackward, kInput, kWeight, kOptimiser, kTransfer, kReduction };
/// "forward", "backward", "backward (input)", "backward (weight)", "optimiser", "transfer", "reduction".
const char* to_string(What what) noexcept;

/// Fields that do not apply are -1.
struct Event {
  What what = What::kForward;
  std::int32_t rank = -1;  ///< that computes or sends; none for a reduction
  std::int32_t peer = -1;  ///< that receives
  std::int32_t pipeline = -1;
  std::int32_t stage = -1;        ///< of a transfer, the sender; of a reduction, its index in Plan::reductions
  std::int32_t micro_batch = -1;  ///< of a reduction, the bucket
  std::int32_t step = 0;
  std::int32_t cause = -1;  ///< the last event that it waited for
  double begin = 0;
  double end = 0;
  double bytes = 0;
};

/// `computes`, `optimises`, `transfers`, `reduces` and `idle` add up to Simulation::seconds.
struct RankUse {
  int pipeline = -1;
  double computes = 0;
  double optimises = 0;
  double transfers = 0;  ///< waits while its input is being transferred
  double reduces = 0;    ///< waits for reductions
  double idle = 0;
  double communicates = 0;  ///< a transfer from or to it is in progress, for pipelines
  double sent_bytes = 0;    ///< for pipelines
  double peak_bytes = 0;
};

struct StageUse {
  int pipeline = 0;
  int stage = 0;
  int rank = 0;
  int in_flight = 0;  ///< maximum of micro-batches whose activations it holds
};

struct PathPart {
  What what = What::kForward;
  std::string where;
  double seconds = 0;
  std::int64_t count = 0;
};

struct RailUse {
  std::string name;   ///< of the rail
  std::string where;  ///< the rank, host or island
  std::string direction;
  double bytes = 0;
  double share = 0;  ///< of its capacity over the time
};

struct Simulation {
  double seconds = 0;
  double step_seconds = 0;
  double bound = 0;  ///< no order of the same actions takes a shorter step
  double bubble = 0;
  std::vector<RankUse> ranks;
  std::vector<StageUse> stages;
  std::vector<PathPart> path;  ///< longest first; adds up to `seconds`
  std::vector<RailUse> rails;  ///< the busiest of each kind and direction
  std::vector<Event> events;   ///< by begin
};

/// Simulates the plan. Throws as check(), and Error(kInvalidArgument) that names the ranks that wait for each other if
/// the actions deadlock. Equal plans give equal answers.
///
/// Cost: O(E log E + E c log c) for E events with c transfers on full rails at the same time.
Simulation simulate(const Plan& plan);

}  // namespace atl::plan::simulated
