// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/json.h"

#include <gtest/gtest.h>

#include "atoll/json/parse.h"
#include "tests/plan/layers/cases.h"

namespace atl::plan {
namespace {

using json::Json;
using test::refusal;

Json example() {
  return Json::parse(R"({
    "items": [
      {"name": "embed", "kind": "embedding",
       "times": {"h": [[1, 0.5, 0.5], [2, 1, 1]], "m": [[1, 0.5, 0.5], [2, 1, 1]]},
       "weight_bytes": 8, "gradient_bytes": 8, "output_bytes": 100},
      {"name": "layers", "count": 6, "times": {"h": [[1, 1, 1], [2, 2, 2]], "m": [[1, 2, 2], [2, 4, 4]]},
       "weight_bytes": 4, "kept_bytes": 10, "recompute_bytes": 1, "output_bytes": 100},
      {"name": "head", "kind": "head", "times": {"h": [[1, 0.5, 0.5], [2, 1, 1]], "m": [[1, 0.5, 0.5], [2, 1, 1]]},
       "weight_bytes": 8, "gradient_bytes": 8}],
    "devices": [{"name": "a", "kind": "h", "count": 2, "island": "one", "memory_bytes": 1000},
                {"name": "b", "kind": "m", "island": "two"}],
    "links": [{"between": ["one", "two"], "latency": 0.25}, {"between": ["a", "a"], "seconds_per_byte": 0.001}],
    "default_link": {"latency": 0.5},
    "ties": [{"items": ["embed", "head"], "weight_bytes": 8, "gradient_bytes": 8}],
    "batch": 8})");
}

TEST(LayersJson, RequestsAreRead) {
  const LayerRequest request = layers_from_json(example().dump());
  ASSERT_EQ(request.items.size(), 8u);
  EXPECT_EQ(request.items[0].name, "embed");
  EXPECT_EQ(request.items[0].kind, LayerKind::kEmbedding);
  EXPECT_EQ(request.items[1].name, "layers.0");
  EXPECT_EQ(request.items[6].name, "layers.5");
  EXPECT_EQ(request.items[6].recompute_bytes, 1);
  EXPECT_FALSE(request.items[7].recompute_bytes.has_value());
  EXPECT_EQ(request.items[1].times[1][1].backward, 4);
  EXPECT_EQ(request.micro_batches, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(request.replicas, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(request.links[0].seconds_per_byte, 0.001);
  EXPECT_EQ(request.links[1].latency, 0.25);
  EXPECT_EQ(request.links[2].latency, 0.25);
  EXPECT_EQ(request.links[3].latency, 0.5);
  ASSERT_EQ(request.ties.size(), 1u);
  EXPECT_EQ(request.ties[0].items, (std::vector<std::size_t>{0, 7}));
  EXPECT_TRUE(std::isinf(request.devices[1].memory_bytes));
}

TEST(LayersJson, AnswersCanBePricedAgain) {
  const Json answer = Json::parse(plan_layers_json(example().dump()));
  ASSERT_TRUE(answer.at("feasible").get<bool>());
  EXPECT_GE(answer.at("distance").get<double>(), 1);
  EXPECT_TRUE(answer.at("exact").at("search").get<bool>());
  EXPECT_EQ(answer.at("left_out"), Json::array());
  Json request = example();
  request["plan"] = answer;
  const Json priced = Json::parse(price_layers_json(request.dump()));
  for (const char* key : {"seconds", "pipelines", "micro_batch", "formats", "left_out", "schedule"}) {
    EXPECT_EQ(priced.at(key), answer.at(key)) << key;
  }
}

TEST(LayersJson, WhatDoesNotFitIsExplained) {
  Json request = example();
  request["devices"][0]["memory_bytes"] = 20;
  request["devices"][1]["memory_bytes"] = 20;
  request["recompute"] = "never";
  const Json answer = Json::parse(plan_layers_json(request.dump()));
  ASSERT_FALSE(answer.at("feasible").get<bool>());
  EXPECT_FALSE(answer.contains("pipelines"));
  EXPECT_GT(answer.at("tightest").at("missing_bytes").get<int>(), 0);
  bool has_memory = false;
  for (const Json& change : answer.at("nearest")) has_memory |= change.at("change") == "memory";
  EXPECT_TRUE(has_memory);
}

Json stage_of(int first, int last, const char* device) { return {{"items", {first, last}}, {"device", device}}; }

// All but the head on the first device, which is too much for it; a plan of the same devices fits.
Json lopsided(double memory) {
  Json request = example();
  request["devices"][0]["memory_bytes"] = memory;
  request["devices"][0]["count"] = 1;
  request["devices"][1]["memory_bytes"] = memory;
  const Json stages = {stage_of(0, 7, "a"), stage_of(7, 8, "b")};
  request["plan"] = {{"micro_batch", 1}, {"pipelines", Json::array({{{"micro_batches", 8}, {"stages", stages}}})}};
  return request;
}

TEST(LayersJson, APlanThatDoesNotFitIsExplained) {
  const Json answer = Json::parse(price_layers_json(lopsided(50).dump()));
  ASSERT_FALSE(answer.at("feasible").get<bool>());
  EXPECT_EQ(answer.at("pipelines").size(), 1u) << "the plan is priced all the same";
  EXPECT_EQ(answer.at("tightest"), [&] {
    Json stage = answer.at("pipelines")[0].at("stages")[0];
    stage["missing_bytes"] = stage.at("memory_bytes").get<int>() - 50;
    return stage;
  }());
  EXPECT_GT(answer.at("tightest").at("missing_bytes").get<int>(), 0);
  ASSERT_EQ(answer.at("nearest").size(), 1u);
  const Json& nearest = answer.at("nearest")[0];
  EXPECT_EQ(nearest.at("change"), "stages");
  const auto& reason = answer.at("reason").get_ref<const std::string&>();
  EXPECT_NE(reason.find("the plan does not fit the devices' memories: embed to layers.5 on a"), std::string::npos);
  EXPECT_NE(reason.find("what would help: other stages: "), std::string::npos) << reason;
  Json again = lopsided(50);
  again["plan"] = {{"micro_batch", nearest.at("micro_batch")}, {"pipelines", nearest.at("pipelines")}};
  const Json priced = Json::parse(price_layers_json(again.dump()));
  EXPECT_TRUE(priced.at("feasible").get<bool>());
  EXPECT_EQ(priced.at("seconds"), nearest.at("seconds"));
  EXPECT_FALSE(priced.contains("reason"));
}

TEST(LayersJson, WhereNoStagesFitAGivenPlanHasTheChangesOfTheRequest) {
  const Json answer = Json::parse(price_layers_json(lopsided(20).dump()));
  ASSERT_FALSE(answer.at("feasible").get<bool>());
  EXPECT_EQ(answer.at("tightest").at("device"), "a");
  bool has_memory = false;
  for (const Json& change : answer.at("nearest")) {
    EXPECT_NE(change.at("change"), "stages");
    has_memory |= change.at("change") == "memory";
  }
  EXPECT_TRUE(has_memory);
}

struct Wrong {
  const char* where;
  Json value;
  const char* words;
};

std::vector<Wrong> wrong_values() {
  return {
      {"/bach", 8, "unknown key \"bach\""},
      {"/schema", 2, "schema is not 1"},
      {"/batch", 0, "the batch is 0"},
      {"/batch", 7.5, "not an integer"},
      {"/batch", Json(std::int64_t{1} << 62), "the batch is"},
      {"/items/0/kind", "bloc", "give one of block, embedding"},
      {"/items/0/times/h", Json::array(), "are missing"},
      {"/items/0/times/h", 3, "are not [[samples"},
      {"/items/0/times/h/0/1", -1, "forward is -1"},
      {"/items/0/times/h/0/1", 1e300, "at most 1e+09"},
      {"/items/0/times/h/0", Json::parse("[1, 1, 1, -2]"), "adding gradients is -2"},
      {"/items/0/times/h/0", Json::parse("[1, 1, 1, 1, 1]"), "are not [[samples"},
      {"/items/0/times/h/0/0", 0, "give at least 1"},
      {"/items/0/times", Json::object(), "no times for devices of kind h"},
      {"/items/0/weight_bytes", -4, "weight_bytes is -4"},
      {"/items/0/kept_bytes", 1e18, "at most 1e+15"},
      {"/items/1/count", 0, "\"count\": 0"},
      {"/items/1/count", 5000, "\"count\": 5000"},
      {"/devices/0/count", 0, "0 devices"},
      {"/devices/1/name", "a", "no other class has"},
      {"/devices/0/memory_bytes", -1, "memory_bytes is -1"},
      {"/devices/0/ranks", Json{0, 0}, "give each rank once"},
      {"/devices/0/ranks", Json{0}, "1 ranks for 2 devices"},
      {"/links/0/between", Json{"one"}, "not two names"},
      {"/links/0/between", Json{"one", "three"}, "neither a class nor an island"},
      {"/links/0/latency", -1, "latency is -1"},
      {"/links/1/between", Json{"two", "one"}, "is given twice"},
      {"/ties/0/items", Json{"embed", "tail"}, "\"tail\", which does not exist"},
      {"/ties/0/items", Json{"embed", "embed"}, "two or more, each once"},
      {"/ties/0/items", Json::array({"embed"}), "tie 0 has the items embed: give two or more"},
      {"/ties/0/items", Json::array(), "tie 0 has no items: give two or more"},
      {"/ties/0/weight_bytes", 9, "shares more bytes than its item embed"},
      {"/schedule", "2f2b", "give one of 1f1b, gpipe"},
      {"/transfers", "hidden", "give one of exposed, overlapped"},
      {"/recompute", "sometimes", "give one of always, auto, never"},
      {"/micro_batch", 3, "no micro_batch divides"},
      {"/micro_batch", Json::array(), "no micro_batch to choose"},
      {"/replicas", 4, "no number of replicas"},
      {"/replicas", -1, "replicas is -1"},
      {"/margin", 1, "margin is 1"},
      {"/chunks", 0, "chunks is 0"},
  };
}

void expect_refused(Json request, const Wrong& wrong) {
  request[Json::json_pointer(wrong.where)] = wrong.value;
  const std::string why = refusal([&] { plan_layers_json(request.dump()); });
  EXPECT_NE(why.find(wrong.words), std::string::npos) << wrong.where << ": " << why;
}

TEST(LayersJson, WrongRequestsAreRefusedByName) {
  for (const Wrong& wrong : wrong_values()) expect_refused(example(), wrong);
  Json bare = example();
  for (const char* key : {"links", "ties"}) bare.erase(key);
  expect_refused(bare, {"/items", Json::array(), "no items"});
  expect_refused(bare, {"/items/0/name", "head", "that no other item has"});
  expect_refused(bare, {"/devices", Json::array(), "no devices"});
  Json many = example();
  for (int i = 0; i < 300; ++i) many["devices"].push_back({{"name", "c" + std::to_string(i)}, {"kind", "h"}});
  EXPECT_NE(refusal([&] { plan_layers_json(many.dump()); }).find("302 classes of devices"), std::string::npos);
  Json few = example();
  few["devices"][0]["count"] = 20;
  EXPECT_NE(refusal([&] { plan_layers_json(few.dump()); }).find("21 devices are more than 1 pipeline of 8 items"),
            std::string::npos);
  EXPECT_NE(refusal([] { plan_layers_json("{"); }).find("not JSON"), std::string::npos);
  Json unmeasured = example();
  unmeasured["items"][0]["times"]["h"] = Json::parse("[[3, 1, 1]]");
  EXPECT_NE(refusal([&] { plan_layers_json(unmeasured.dump()); }).find("give \"micro_batch\""), std::string::npos);
}

TEST(LayersJson, WrongPlansAreRefusedByName) {
  struct Case {
    const char* stages;
    const char* words;
  };
  for (const Case& each : {Case{R"([{"items": [0, 8], "device": "c"}])", "give one of a, b"},
                           Case{R"([{"items": [0, 7], "device": "a"}])", "ends with item 7 of 8"},
                           Case{R"([{"items": [0, 9], "device": "a"}])", "after item 0 of 8"},
                           Case{R"([{"items": [1, 8], "device": "a"}])", "after item 0 of 8"},
                           Case{R"([{"items": [0, 0], "device": "a"}])", "after item 0 of 8"},
                           Case{R"([{"items": [0, -3], "device": "a"}])", "must be [first"},
                           Case{R"([{"items": [0, 4], "device": "b"}, {"items": [4, 8], "device": "b"}])",
                                "more stages than devices of the class b"},
                           Case{"[]", "ends with item 0"}}) {
    Json request = example();
    request["plan"] = {{"micro_batch", 1},
                       {"pipelines", {{{"micro_batches", 8}, {"stages", Json::parse(each.stages)}}}}};
    const std::string why = refusal([&] { price_layers_json(request.dump()); });
    EXPECT_NE(why.find(each.words), std::string::npos) << each.stages << ": " << why;
  }
  Json request = example();
  EXPECT_NE(refusal([&] { price_layers_json(request.dump()); }).find("lacks \"plan\""), std::string::npos);
  request["plan"] = {{"micro_batch", 1}, {"pipelines", Json::array()}};
  EXPECT_FALSE(refusal([&] { price_layers_json(request.dump()); }).empty());
  request["plan"] = {{"micro_batch", Json(std::int64_t{1} << 60)},
                     {"pipelines", {{{"micro_batches", Json(std::int64_t{1} << 60)}, {"stages", Json::array()}}}}};
  EXPECT_FALSE(refusal([&] { price_layers_json(request.dump()); }).empty());
}

}  // namespace
}  // namespace atl::plan
