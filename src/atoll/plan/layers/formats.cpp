// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/formats.h"

#include <algorithm>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

// Returns the stages that all pipelines share.
const std::vector<LayerStage>& common_stages(const LayerRequest& request, const LayerPlan& plan,
                                             const std::string& format) {
  if (plan.pipelines.empty()) refuse("the plan has no pipelines");
  if (request.schedule == LayerSchedule::kInterleaved) {
    refuse(format + " supports one range of items per device, but an interleaved plan has chunks: plan for 1f1b");
  }
  const LayerPipeline& first = plan.pipelines.front();
  for (const LayerPipeline& pipeline : plan.pipelines) {
    if (pipeline.micro_batches != first.micro_batches) {
      refuse(format + " requires equally many micro-batches in all pipelines; these have " +
             std::to_string(first.micro_batches) + " and " + std::to_string(pipeline.micro_batches));
    }
    const bool same = std::equal(first.stages.begin(), first.stages.end(), pipeline.stages.begin(),
                                 pipeline.stages.end(), [&](const LayerStage& a, const LayerStage& b) {
                                   return a.begin == b.begin && a.end == b.end &&
                                          request.devices[a.device].kind == request.devices[b.device].kind;
                                 });
    if (!same) refuse(format + " requires the same stages in all pipelines; these differ");
    for (const LayerStage& stage : pipeline.stages) {
      if (stage.recompute != first.stages.front().recompute) {
        refuse(format + " recomputes on all stages or on none: plan with recompute never or always");
      }
    }
  }
  return first.stages;
}

// Counts blocks by stage; the embedding must come first, norm and head last.
std::vector<std::int64_t> blocks_of(const LayerRequest& request, const std::vector<LayerStage>& stages,
                                    const std::string& format) {
  std::vector<std::int64_t> blocks;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    blocks.push_back(0);
    for (std::size_t i = stages[k].begin; i < stages[k].end; ++i) {
      const LayerItem& item = request.items[i];
      const char* rule = nullptr;
      switch (item.kind) {
        case LayerKind::kBlock:
          if (i > 0 && request.items[i - 1].kind != LayerKind::kBlock &&
              request.items[i - 1].kind != LayerKind::kEmbedding) {
            rule = "requires all blocks before the final norm and the head";
          }
          ++blocks.back();
          break;
        case LayerKind::kEmbedding:
          if (i > 0) rule = "requires one embedding, before everything else";
          break;
        case LayerKind::kNorm:
        case LayerKind::kHead:
          if (k + 1 != stages.size()) rule = "requires the final norm and the head on the last stage";
          break;
        case LayerKind::kOther: rule = "supports embedding, blocks, final norm and head"; break;
      }
      if (rule == nullptr) continue;
      refuse(format + " " + rule + "; here " + item.name + " is item " + std::to_string(i) + " on stage " +
             std::to_string(k) + " of " + std::to_string(stages.size()));
    }
  }
  return blocks;
}

}  // namespace

std::int64_t rank_of(const LayerRequest& request, std::size_t device, std::int64_t number) {
  const std::vector<std::int64_t>& ranks = request.devices[device].ranks;
  if (!ranks.empty()) return ranks[static_cast<std::size_t>(number)];
  for (std::size_t before = 0; before < device; ++before) number += request.devices[before].count;
  return number;
}

std::vector<std::int64_t> stage_order(const LayerRequest& request, const LayerPlan& plan) {
  std::vector<std::int64_t> order;
  for (std::size_t k = 0; k < common_stages(request, plan, "a list of ranks by stage").size(); ++k) {
    for (const LayerPipeline& pipeline : plan.pipelines) {
      order.push_back(rank_of(request, pipeline.stages[k].device, pipeline.stages[k].number));
    }
  }
  return order;
}

std::string megatron_layout(const LayerRequest& request, const LayerPlan& plan) {
  const std::string format = "Megatron-Core's layout";
  const std::vector<std::int64_t> blocks = blocks_of(request, common_stages(request, plan, format), format);
  std::string layout = "E";
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    if (k > 0) layout += '|';
    if (blocks[k] > 0) layout += 't';
    if (blocks[k] > 1) layout += "*" + std::to_string(blocks[k]);
  }
  return layout + "L";
}

FlagScaleSettings flagscale_settings(const LayerRequest& request, const LayerPlan& plan) {
  const std::string format = "FlagScale";
  const std::vector<LayerStage>& stages = common_stages(request, plan, format);
  FlagScaleSettings settings;
  settings.pipeline_layer_split = blocks_of(request, stages, format);
  const auto replicas = static_cast<std::int64_t>(plan.pipelines.size());
  for (std::size_t k = 0; k < stages.size(); ++k) {
    if (settings.pipeline_layer_split[k] == 0) {
      refuse(format + " divides blocks, of which stage " + std::to_string(k) + " has none");
    }
    const std::string& kind = request.devices[stages[k].device].kind;
    if (!settings.device_types.empty() && settings.device_types.back() == kind) {
      ++settings.process_meshes.back();
    } else {
      settings.device_types.push_back(kind);
      settings.process_meshes.insert(settings.process_meshes.end(), {1, 1, 1, replicas, 1});
    }
  }
  return settings;
}

std::vector<std::vector<std::string>> torchtitan_modules(const LayerRequest& request, const LayerPlan& plan) {
  std::vector<std::vector<std::string>> modules;
  for (const LayerStage& stage : common_stages(request, plan, "torchtitan")) {
    modules.emplace_back();
    for (std::size_t i = stage.begin; i < stage.end; ++i) modules.back().push_back(request.items[i].name);
  }
  return modules;
}

}  // namespace atl::plan
