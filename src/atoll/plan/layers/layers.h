// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace atl::plan {

/// The maximum number of items of a request.
inline constexpr std::size_t kMaxLayerItems = 2048;
/// The maximum batch, number of micro-batches, and other counts of a request.
inline constexpr std::int64_t kMaxLayerCount = std::int64_t{1} << 30;

/// The kind of an item in other runtimes; the planner itself treats all alike.
enum class LayerKind { kBlock, kEmbedding, kHead, kNorm, kOther };

/// One measurement of an item: seconds of a micro-batch of `samples`.
struct LayerTime {
  double samples = 1;
  double forward = 0;
  double backward = 0;    ///< of the first in a step, whose gradients are new
  double accumulate = 0;  ///< extra seconds for each further one, whose gradients are added
};

/// A part of the model that is assigned to a stage as a whole: an embedding, a block, a head.
struct LayerItem {
  std::string name;
  LayerKind kind = LayerKind::kBlock;
  std::vector<std::vector<LayerTime>> times;  ///< by class of devices; linear between the points, as Cost::table
  double weight_bytes = 0;
  double gradient_bytes = 0;
  double optimiser_bytes = 0;
  double kept_bytes = 0;                  ///< activations kept for the backward pass, for each sample
  std::optional<double> recompute_bytes;  ///< the same with recomputation; none: never recomputed
  double output_bytes = 0;                ///< sent to the next item, for each sample

  double state_bytes() const { return weight_bytes + gradient_bytes + optimiser_bytes; }
};

/// Items that share a weight. Each item's own bytes include the shared ones, which a stage with several of the items
/// holds once; stages that hold copies add their gradients once in a step.
struct LayerTie {
  std::vector<std::size_t> items;
  double weight_bytes = 0;
  double gradient_bytes = 0;
  double optimiser_bytes = 0;
  bool apart = true;  ///< whether the items may be on different stages

  double state_bytes() const { return weight_bytes + gradient_bytes + optimiser_bytes; }
  /// Returns how many of the items are in [begin, end).
  std::ptrdiff_t held(std::size_t begin, std::size_t end) const {
    return std::ranges::count_if(items, [&](std::size_t item) { return item >= begin && item < end; });
  }
};

/// A class: equal devices in one place.
struct LayerDevices {
  std::string name;
  std::string kind;
  std::string island;
  std::int64_t count = 1;
  double memory_bytes = std::numeric_limits<double>::infinity();  ///< of each
  std::vector<std::int64_t> ranks;                                ///< of each; empty: numbered across all classes
};

/// One direction takes latency + bytes * seconds_per_byte.
struct LayerLink {
  double latency = 0;
  double seconds_per_byte = 0;
  double seconds(double bytes) const { return latency + bytes * seconds_per_byte; }
};

enum class LayerSchedule { k1F1B, kGPipe, kInterleaved, kZeroBubble };
/// Whether communication keeps devices waiting or runs beside them; docs/plan-layers.md states both models.
enum class LayerOverlap { kExposed, kOverlapped };
enum class LayerRecompute { kAlways, kAuto, kNever };

struct LayerRequest {
  std::vector<LayerItem> items;
  std::vector<LayerDevices> devices;
  std::vector<LayerLink> links;  ///< [from * devices + to]; symmetric
  std::vector<LayerTie> ties;
  std::int64_t batch = 0;                   ///< samples of a step
  std::vector<std::int64_t> micro_batches;  ///< sizes to choose from, in samples
  std::vector<std::int64_t> replicas{1};    ///< numbers of pipelines to choose from
  LayerSchedule schedule = LayerSchedule::k1F1B;
  std::int64_t chunks = 2;  ///< of kInterleaved
  LayerOverlap transfers = LayerOverlap::kExposed;
  LayerOverlap gradients = LayerOverlap::kExposed;
  LayerRecompute recompute = LayerRecompute::kAuto;
  bool leave_out = false;  ///< whether some devices may have no stage
  double margin = 0;       ///< share of each memory to leave free
  std::int64_t most_placements = 2000;
};

/// Items [begin, end) on a device of class `device`. The other fields are set by pricing.
struct LayerStage {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t device = 0;
  bool recompute = false;

  std::int64_t number = 0;  ///< which device of the class
  double in_flight = 0;     ///< micro-batches whose activations it holds at once
  double forward = 0;       ///< seconds of a micro-batch
  double backward = 0;      ///< with the second forward where it recomputes
  double accumulate = 0;    ///< of all micro-batches but the first
  double send = 0;          ///< both directions over the boundary after it
  double seconds = 0;       ///< for which it keeps the pipeline busy for each micro-batch
  double memory_bytes = 0;
  double cap_bytes = 0;
  bool fits() const { return memory_bytes <= cap_bytes; }
};

struct LayerPipeline {
  std::int64_t micro_batches = 0;
  std::vector<LayerStage> stages;
  double period = 0;     ///< the longest stage
  double fill = 0;       ///< a micro-batch through all stages and back
  double ties = 0;       ///< tied gradients, added once in a step
  double gradients = 0;  ///< the longest reduction of a stage's gradients with the other pipelines
  double seconds = 0;    ///< without the gradients
};

struct LayerPlan {
  std::int64_t micro_batch = 0;
  std::vector<LayerPipeline> pipelines;
  double seconds = 0;  ///< of a step
  bool fits = false;   ///< every stage fits its memory
};

/// How a plan was found. `stages`: no other stages are faster at this micro-batch, placement and division of
/// micro-batches. `search`: no other allowed micro-batch size, number of replicas, placement or division is faster
/// either.
struct LayerProof {
  bool stages = false;
  bool search = false;
  std::int64_t examined = 0;  ///< placements at a micro-batch size
  std::int64_t pruned = 0;    ///< of these, those excluded by a bound
};

/// A change of the request that makes a plan feasible.
struct LayerChange {
  std::string change;  ///< "stages", "recompute", "schedule", "micro_batch", "replicas", "leave_out" or "memory"
  std::string text;
  double missing_bytes = 0;  ///< of "memory": for each device
  LayerPlan plan;
};

struct LayerAnswer {
  std::optional<LayerPlan> plan;
  double bound = 0;  ///< no plan of the request is faster
  LayerProof proof;
  std::optional<LayerPlan> homogeneous;  ///< the best on devices of one kind
  std::string homogeneous_kind;
  bool homogeneous_wins = false;
  std::vector<std::string> notes;

  // Without a plan:
  std::string reason;
  std::optional<LayerStage> tightest;  ///< of the plan that lacks the least memory, or of the given one
  std::vector<LayerChange> nearest;    ///< the fastest first
};

/// Throws Error(kInvalidArgument) that names the item, class or option, and what is allowed: for numbers that are
/// negative, not finite or too large, unknown references, fewer items than devices must hold, and a batch that no
/// micro-batch divides.
void check(const LayerRequest& request);

/// Returns the fastest plan by the model described in docs/plan-layers.md. Steps: for each micro-batch size, number of
/// pipelines and division of the devices among them (enumerated, pruned by bounds), the division of micro-batches
/// (minimax, exact) over the fastest stages of each pipeline (exact: pipeline.h). Throws as `check`; if nothing fits,
/// the answer says why.
LayerAnswer plan_layers(const LayerRequest& request);

/// Prices a given plan: of `plan`, the sizes of the micro-batches and begin, end, device and recompute of the stages
/// are read. Each pipeline must hold all items in order, and no class may have more stages than devices; the result
/// reports whether memories suffice. Throws Error(kInvalidArgument).
LayerPlan price_layers(const LayerRequest& request, const LayerPlan& plan);

/// Returns a lower bound on the seconds of any plan of the request: all work spread over all devices by their speeds,
/// the longest item, and one micro-batch through the fastest devices.
double layer_bound(const LayerRequest& request);

}  // namespace atl::plan
