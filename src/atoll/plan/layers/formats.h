// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

// A plan in the formats of other runtimes. All functions throw Error(kInvalidArgument) that names what the format
// cannot express: unequal pipelines, unequal shares of micro-batches, recomputation on some stages only, the chunks of
// an interleaved plan, and the limits documented for each format.

/// Returns Megatron-Core's --pipeline-model-parallel-layout: "Et*15|t*17L". E is the embedding, t a block, L the loss
/// with the final norm and the head, which must therefore be on the last stage.
std::string megatron_layout(const LayerRequest& request, const LayerPlan& plan);

/// FlagScale's hetero_* settings. Embedding, norm and head go with the first and the last block; each stage needs a
/// block.
struct FlagScaleSettings {
  std::vector<std::int64_t> pipeline_layer_split;  ///< blocks by stage
  std::vector<std::int64_t> process_meshes;        ///< tp, cp, ep, dp, pp of each run of stages on devices of one kind
  std::vector<std::string> device_types;           ///< of each mesh
};
FlagScaleSettings flagscale_settings(const LayerRequest& request, const LayerPlan& plan);

/// Returns torchtitan's module_fqns_per_model_part: the items' names by stage, which must be the model's module names.
std::vector<std::vector<std::string>> torchtitan_modules(const LayerRequest& request, const LayerPlan& plan);

/// Returns the plan's ranks in the order in which these runtimes number theirs: stage by stage, in each all pipelines.
std::vector<std::int64_t> stage_order(const LayerRequest& request, const LayerPlan& plan);

/// Returns a device's rank in the job.
std::int64_t rank_of(const LayerRequest& request, std::size_t device, std::int64_t number);

}  // namespace atl::plan
