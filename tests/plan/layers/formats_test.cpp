// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/formats.h"

#include <gtest/gtest.h>

#include "tests/plan/layers/cases.h"

namespace atl::plan {
namespace {

using test::layer_devices;
using test::layer_item;
using test::refusal;

// Embedding, blocks, norm, head; two classes of two devices each.
LayerRequest model(std::size_t blocks) {
  LayerRequest request;
  const std::vector<std::vector<LayerTime>> times{{{1, 1, 1}}, {{1, 1, 1}}};
  const auto add = [&](const std::string& name, LayerKind kind) {
    request.items.push_back(layer_item(name, times));
    request.items.back().kind = kind;
  };
  add("tok_embeddings", LayerKind::kEmbedding);
  for (std::size_t i = 0; i < blocks; ++i) add("layers." + std::to_string(i), LayerKind::kBlock);
  add("norm", LayerKind::kNorm);
  add("output", LayerKind::kHead);
  request.devices = {layer_devices("h200", 2), layer_devices("mi325x", 2)};
  request.devices[1].ranks = {7, 9};
  request.links.assign(4, {});
  request.batch = 4;
  request.micro_batches = {1};
  return request;
}

// As many equal pipelines, with a stage up to each of `ends` on the class beside it.
LayerPlan plan_of(const LayerRequest& request, const std::vector<std::pair<std::size_t, std::size_t>>& ends,
                  std::size_t pipelines = 1) {
  LayerPlan plan;
  plan.micro_batch = 1;
  plan.pipelines.resize(pipelines);
  for (LayerPipeline& pipeline : plan.pipelines) {
    pipeline.micro_batches = 4;
    std::size_t begin = 0;
    for (const auto& [end, device] : ends) {
      pipeline.stages.push_back({begin, end, device});
      begin = end;
    }
  }
  return price_layers(request, plan);
}

TEST(LayerFormats, WriteTheLayoutOfMegatron) {
  const LayerRequest request = model(32);
  EXPECT_EQ(megatron_layout(request, plan_of(request, {{16, 0}, {35, 1}})), "Et*15|t*17L");
  EXPECT_EQ(megatron_layout(request, plan_of(request, {{1, 0}, {2, 0}, {33, 1}, {35, 1}})), "E|t|t*31|L");
  EXPECT_EQ(megatron_layout(request, plan_of(request, {{35, 0}})), "Et*32L");
}

TEST(LayerFormats, WriteTheListsOfFlagScale) {
  const LayerRequest request = model(32);
  const FlagScaleSettings pair = flagscale_settings(request, plan_of(request, {{16, 0}, {35, 1}}, 2));
  EXPECT_EQ(pair.pipeline_layer_split, (std::vector<std::int64_t>{15, 17}));
  EXPECT_EQ(pair.process_meshes, (std::vector<std::int64_t>{1, 1, 1, 2, 1, 1, 1, 1, 2, 1}));
  EXPECT_EQ(pair.device_types, (std::vector<std::string>{"h200", "mi325x"}));
  const FlagScaleSettings four = flagscale_settings(request, plan_of(request, {{9, 0}, {17, 0}, {25, 1}, {35, 1}}));
  EXPECT_EQ(four.pipeline_layer_split, (std::vector<std::int64_t>{8, 8, 8, 8}));
  EXPECT_EQ(four.process_meshes, (std::vector<std::int64_t>{1, 1, 1, 1, 2, 1, 1, 1, 1, 2}));
  EXPECT_NE(refusal([&] {
              flagscale_settings(request, plan_of(request, {{33, 0}, {35, 1}}));
            }).find("stage 1 has none"),
            std::string::npos);
}

TEST(LayerFormats, WriteTheModulesOfTorchtitan) {
  const LayerRequest request = model(3);
  const std::vector<std::vector<std::string>> expected{{"tok_embeddings", "layers.0"},
                                                       {"layers.1", "layers.2", "norm", "output"}};
  EXPECT_EQ(torchtitan_modules(request, plan_of(request, {{2, 0}, {6, 1}})), expected);
}

TEST(LayerFormats, NumberRanksStageByStage) {
  const LayerRequest request = model(3);
  EXPECT_EQ(stage_order(request, plan_of(request, {{2, 0}, {6, 1}}, 2)), (std::vector<std::int64_t>{0, 1, 7, 9}));
  EXPECT_EQ(stage_order(request, plan_of(request, {{2, 1}, {6, 0}}, 2)), (std::vector<std::int64_t>{7, 9, 0, 1}));
}

TEST(LayerFormats, RefuseUnequalPipelines) {
  LayerRequest request = model(4);
  const LayerPlan plan = plan_of(request, {{3, 0}, {7, 1}}, 2);
  const auto refused = [&](const LayerPlan& each) {
    std::string titan = refusal([&] { torchtitan_modules(request, each); });
    EXPECT_FALSE(refusal([&] { megatron_layout(request, each); }).empty());
    EXPECT_FALSE(refusal([&] { flagscale_settings(request, each); }).empty());
    EXPECT_FALSE(refusal([&] { stage_order(request, each); }).empty());
    return titan;
  };
  LayerPlan other = plan;
  other.pipelines[1].micro_batches = 3;
  EXPECT_NE(refused(other).find("4 and 3"), std::string::npos);
  other = plan;
  other.pipelines[1].stages[0].end = other.pipelines[1].stages[1].begin = 4;
  EXPECT_NE(refused(other).find("requires the same stages"), std::string::npos);
  other = plan;
  std::swap(other.pipelines[1].stages[0].device, other.pipelines[1].stages[1].device);
  EXPECT_NE(refused(other).find("requires the same stages"), std::string::npos);
  other = plan;
  other.pipelines[1].stages[1].recompute = true;
  EXPECT_NE(refused(other).find("recomputes on all stages"), std::string::npos);
  request.schedule = LayerSchedule::kInterleaved;
  EXPECT_NE(refused(plan).find("chunk"), std::string::npos);
}

TEST(LayerFormats, RefuseItemsOutOfPlace) {
  LayerRequest request = model(4);
  const auto refused = [&] {
    const LayerPlan plan = plan_of(request, {{5, 0}, {7, 1}});
    EXPECT_FALSE(refusal([&] { flagscale_settings(request, plan); }).empty());
    EXPECT_TRUE(refusal([&] { torchtitan_modules(request, plan); }).empty());
    return refusal([&] { megatron_layout(request, plan); });
  };
  std::swap(request.items[2].kind, request.items[0].kind);
  EXPECT_NE(refused().find("one embedding, before everything else"), std::string::npos);
  request = model(4);
  request.items[2].kind = LayerKind::kNorm;
  EXPECT_NE(refused().find("on the last stage"), std::string::npos);
  request = model(4);
  request.items[6].kind = LayerKind::kBlock;
  EXPECT_NE(refused().find("before the final norm"), std::string::npos);
  request = model(4);
  request.items[1].kind = LayerKind::kOther;
  EXPECT_NE(refused().find("supports embedding, blocks"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
