// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <set>
#include <utility>

#include "atoll/plan/layers/formats.h"
#include "atoll/plan/layers/json.h"
#include "atoll/plan/layers/pipeline.h"
#include "atoll/plan/layers/search.h"
#include "atoll/plan/text.h"

namespace atl::plan {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerStage, number, recompute, in_flight, forward, backward, accumulate, send,
                                   seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerPipeline, micro_batches, seconds, period, fill, ties, gradients)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerProof, stages, search, examined, pruned)

namespace {

using json::Json;

// Writes an integer if the number is one, null for no limit.
Json bytes(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 0x1p53) return static_cast<std::int64_t>(value);
  return value;
}

Json write(const LayerRequest& request, const LayerStage& stage) {
  Json names = Json::array();
  for (std::size_t i = stage.begin; i < stage.end; ++i) names.push_back(request.items[i].name);
  const LayerDevices& devices = request.devices[stage.device];
  Json value = stage;
  value.update(Json{{"items", {stage.begin, stage.end}},
                    {"names", std::move(names)},
                    {"device", devices.name},
                    {"rank", rank_of(request, stage.device, stage.number)},
                    {"island", devices.island},
                    {"memory_bytes", bytes(stage.memory_bytes)},
                    {"memory_cap_bytes", bytes(stage.cap_bytes)},
                    {"fits", stage.fits()}});
  return value;
}

Json write_stages(const LayerRequest& request, const LayerPipeline& pipeline) {
  Json stages = Json::array();
  for (const LayerStage& stage : pipeline.stages) stages.push_back(write(request, stage));
  return stages;
}

Json write_pipelines(const LayerRequest& request, const LayerPlan& plan) {
  Json pipelines = Json::array();
  for (const LayerPipeline& pipeline : plan.pipelines) {
    pipelines.push_back(pipeline);
    pipelines.back()["stages"] = write_stages(request, pipeline);
  }
  return pipelines;
}

// Writes the items of each chunk, which the pipelines leave open.
void write_chunks(const LayerRequest& request, const LayerPlan& plan, Json& pipelines) {
  const LayerCosts costs(request, plan.micro_batch);
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    Json& written = pipelines[i]["chunked"];
    const std::optional<LayerPipeline> found = chunked(costs, plan.pipelines[i]);
    if (found) written = {{"seconds", found->seconds}, {"stages", write_stages(request, *found)}};
  }
}

template <class Write>
Json or_refusal(const Write& written) {
  try {
    return written();
  } catch (const Error& error) {
    return {{"refused", error.what()}};
  }
}

Json write_formats(const LayerRequest& request, const LayerPlan& plan) {
  const auto sizes = [&](Json value) {
    value["micro_batch_size"] = plan.micro_batch;
    value["global_batch_size"] = request.batch;
    value["ranks"] = stage_order(request, plan);
    return value;
  };
  Json formats;
  formats["megatron"] = or_refusal([&] {
    return sizes({{"pipeline_model_parallel_layout", megatron_layout(request, plan)},
                  {"pipeline_model_parallel_size", plan.pipelines.front().stages.size()}});
  });
  formats["flagscale"] = or_refusal([&] {
    const FlagScaleSettings settings = flagscale_settings(request, plan);
    return sizes({{"enable_hetero", true},
                  {"hetero_pipeline_layer_split", settings.pipeline_layer_split},
                  {"hetero_process_meshes", settings.process_meshes},
                  {"hetero_device_types", settings.device_types}});
  });
  formats["torchtitan"] = or_refusal([&] {
    return sizes({{"module_fqns_per_model_part", torchtitan_modules(request, plan)},
                  {"pipeline_parallel_degree", plan.pipelines.front().stages.size()}});
  });
  return formats;
}

Json devices_without_stage(const LayerRequest& request, const LayerPlan& plan) {
  std::set<std::pair<std::size_t, std::int64_t>> used;
  for (const LayerPipeline& pipeline : plan.pipelines) {
    for (const LayerStage& stage : pipeline.stages) used.emplace(stage.device, stage.number);
  }
  Json left_out = Json::array();
  for (std::size_t device = 0; device < request.devices.size(); ++device) {
    for (std::int64_t number = 0; number < request.devices[device].count; ++number) {
      if (used.contains({device, number})) continue;
      left_out.push_back(
          {{"device", request.devices[device].name}, {"number", number}, {"rank", rank_of(request, device, number)}});
    }
  }
  return left_out;
}

// Writes the keys that every plan has.
Json write_plan(const LayerRequest& request, const LayerPlan& plan, double bound) {
  std::int64_t micro_batches = 0;
  for (const LayerPipeline& pipeline : plan.pipelines) micro_batches += pipeline.micro_batches;
  const bool interleaved = request.schedule == LayerSchedule::kInterleaved;
  Json pipelines = write_pipelines(request, plan);
  if (interleaved && request.chunks > 1) write_chunks(request, plan, pipelines);
  return {{"schema", 1},
          {"feasible", plan.fits},
          {"seconds", plan.seconds},
          {"samples_per_second",
           plan.seconds > 0 ? Json(static_cast<double>(request.batch) / plan.seconds) : Json(nullptr)},
          {"bound", bound},
          {"distance", bound > 0 ? plan.seconds / bound : 1.0},
          {"micro_batch", plan.micro_batch},
          {"micro_batches", micro_batches},
          {"replicas", plan.pipelines.size()},
          {"schedule", kScheduleNames[static_cast<int>(request.schedule)]},
          {"chunks", interleaved ? request.chunks : 1},
          {"pipelines", std::move(pipelines)},
          {"left_out", devices_without_stage(request, plan)},
          {"formats", write_formats(request, plan)}};
}

// Writes why nothing fits, or why a given plan does not, and what would.
void write_reason(const LayerRequest& request, const LayerAnswer& answer, Json& value) {
  value["reason"] = answer.reason;
  value["tightest"] = nullptr;
  if (answer.tightest) {
    value["tightest"] = write(request, *answer.tightest);
    value["tightest"]["missing_bytes"] = bytes(answer.tightest->memory_bytes - answer.tightest->cap_bytes);
  }
  value["nearest"] = Json::array();
  for (const LayerChange& change : answer.nearest) {
    Json each{{"change", change.change},
              {"text", change.text},
              {"seconds", change.plan.seconds},
              {"micro_batch", change.plan.micro_batch},
              {"pipelines", write_pipelines(request, change.plan)}};
    if (change.change == "memory") each["missing_bytes"] = bytes(change.missing_bytes);
    value["nearest"].push_back(std::move(each));
  }
}

}  // namespace

Json write_priced(const LayerRequest& request, const LayerPlan& plan) {
  Json value = write_plan(request, plan, layer_bound(request));
  if (!plan.fits) write_reason(request, explain_given(request, plan), value);
  return value;
}

Json write_answer(const LayerRequest& request, const LayerAnswer& answer) {
  Json value{{"schema", 1}, {"feasible", false}, {"bound", answer.bound}};
  if (answer.plan) value = write_plan(request, *answer.plan, answer.bound);
  value["notes"] = answer.notes;
  value["homogeneous"] = nullptr;
  if (answer.homogeneous) {
    std::size_t devices = 0;
    for (const LayerPipeline& pipeline : answer.homogeneous->pipelines) devices += pipeline.stages.size();
    value["homogeneous"] = {{"kind", answer.homogeneous_kind},
                            {"devices", devices},
                            {"seconds", answer.homogeneous->seconds},
                            {"wins", answer.homogeneous_wins},
                            {"micro_batch", answer.homogeneous->micro_batch},
                            {"pipelines", write_pipelines(request, *answer.homogeneous)}};
  }
  if (answer.plan) {
    value["exact"] = answer.proof;
    return value;
  }
  write_reason(request, answer, value);
  return value;
}

}  // namespace atl::plan
