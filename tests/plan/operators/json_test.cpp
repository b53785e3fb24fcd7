// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/json.h"

#include "atoll/plan/operators/policies.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;
using test::refusal;

// 10 rows of 100 bytes, a convolution over three rows, a pooling of two, and an operator that reads all of it.
Json small_model() {
  return Json::parse(R"({"operators": [
    {"name": "input", "rows": 10, "bytes": 1000},
    {"name": "conv", "rows": 10, "bytes": 500, "robot": {"per_row": 0.1}, "server": {"fixed": 0.01},
     "operands": [{"producer": 0, "map": {"kernel": 3, "padding": 1}}]},
    {"name": "pool", "rows": 5, "bytes": 100, "robot": {"per_row": 0.1},
     "operands": [{"producer": 1, "map": {"times": 2}}]},
    {"name": "head", "bytes": 10, "robot": {"fixed": 0.5}, "operands": [{"producer": 2}]}], "outputs": [3]})");
}

Json request_of(const Json& model) { return {{"model", model}, {"link", {{"up", 10'000}}}}; }

Json answer(const Json& request) { return Json::parse(plan_operators(request.dump())); }

OperatorGraph read(const Json& model) {
  Fields fields(model, "the model");
  OperatorGraph graph = read_operators(fields);
  fields.done();
  return graph;
}

TEST(OperatorsJson, ReadsMapsOfRows) {
  Json model = small_model();
  model["operators"].push_back(
      {{"name", "odd"},
       {"rows", 3},
       {"bytes", 3},
       {"operands", {{{"producer", 0}, {"map", {{"begin", {7, -2, 4}}, {"end", {9, 1, 5}}}}}}}});
  const OperatorGraph graph = read(model);
  const auto needed = [&](std::size_t index, Region rows) { return graph.operators[index].operands[0].needed(rows); };
  EXPECT_EQ(needed(1, {0, 1}), (Region{0, 2}));
  EXPECT_EQ(needed(1, {4, 6}), (Region{3, 7}));
  EXPECT_TRUE(needed(1, {}).is_empty());
  EXPECT_EQ(needed(2, {1, 3}), (Region{2, 6}));
  EXPECT_EQ(needed(4, {0, 1}), (Region{7, 9}));
  EXPECT_EQ(needed(4, {1, 2}), (Region{0, 1}));
  EXPECT_EQ(needed(4, {0, 3}), (Region{0, 9}));
  EXPECT_FALSE(graph.operators[3].operands[0].needed);
  EXPECT_DOUBLE_EQ(graph.robot_seconds(), 1 + 0.5 + 0.5);
  EXPECT_DOUBLE_EQ(graph.server_seconds(), 0.01);
}

TEST(OperatorsJson, RowsThatDoNotExistAreNotNeeded) {
  Json model = small_model();
  model["operators"][1]["operands"][0]["map"] = {{"begin", Json(std::vector<int>(10, -3))},
                                                 {"end", Json(std::vector<int>(10, 99))}};
  const OperatorGraph graph = read(model);
  EXPECT_EQ(graph.operators[1].operands[0].needed({0, 1}), (Region{0, 10}));
  EXPECT_EQ(read(small_model()).operators[1].operands[0].needed({8, 10}), (Region{7, 10}));
}

TEST(OperatorsJson, WritesWhatItReads) {
  Json model = small_model();
  model["operators"].push_back(
      {{"name", "odd"},
       {"rows", 3},
       {"bytes", 3},
       {"operands", {{{"producer", 0}, {"map", {{"begin", {7, 0, 4}}, {"end", {9, 0, 5}}}}}}}});
  const Json once = write_operators(read(model));
  EXPECT_EQ(write_operators(read(once)), once);
  EXPECT_EQ(once["outputs"], model["outputs"]);
  EXPECT_EQ(once["operators"][1]["operands"][0]["map"], Json::parse(R"({"kernel": 3, "stride": 1, "padding": 1})"));
  EXPECT_EQ(once["operators"][4]["operands"][0]["map"], Json::parse(R"({"begin": [7, 0, 4], "end": [9, 0, 5]})"));
  EXPECT_FALSE(once["operators"][3]["operands"][0].contains("map"));
  EXPECT_EQ(answer(request_of(once))["plans"], answer(request_of(model))["plans"]);
}

TEST(OperatorsJson, AnswersWithAllPoliciesAndTheBound) {
  const Json found = answer(request_of(small_model()));
  EXPECT_EQ(found["plans"].size(), operator_policies().size() - 1);
  const double bound = found["bound"]["seconds"];
  EXPECT_GT(bound, 0);
  for (const Json& plan : found["plans"]) {
    EXPECT_GE(plan["seconds"].get<double>(), bound * (1 - 1e-9)) << plan;
    EXPECT_NEAR(plan["gap"].get<double>(), 1 - bound / plan["seconds"].get<double>(), 1e-12);
    EXPECT_FALSE(plan.contains("events"));
  }
  EXPECT_DOUBLE_EQ(found["plans"][0]["seconds"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(found["robot_seconds"].get<double>(), 2);
}

TEST(OperatorsJson, WholePlansHaveSharesAndEvents) {
  Json request = request_of(small_model());
  request["policies"] = {"offload"};
  request["whole"] = true;
  const Json found = answer(request);
  const Json& plan = found["plans"][0];
  EXPECT_EQ(plan["shares"][1], Json::parse("[[0, 0], [0, 10]]"));
  EXPECT_EQ(plan["events"][0][0], "up");
  EXPECT_EQ(plan["events"].size(), 5U);  // up, three operators, down
  EXPECT_EQ(found["names"], Json::parse(R"(["input", "conv", "pool", "head"])"));
}

TEST(OperatorsJson, RatesAndReplays) {
  Json request = request_of(small_model());
  request["policies"] = {"local", "cut"};
  request["rates"] = {100, 100'000};
  request["trace"] = Json::parse(R"({"bin_seconds": 0.5, "up": [10000, 0, 100, 50000], "length": 100, "period": 5})");
  request["replay"] = Json::parse(R"([{"policy": "local"}, {"policy": "offload"},
    {"policy": "cut", "rates": [1000, 20000]}, {"policy": "auto", "guard": true},
    {"policy": "auto", "forecast": "oracle"}, {"policy": "auto", "forecast": "ar1", "quantile": 0.95, "each": true}])");
  const Json found = answer(request);
  ASSERT_EQ(found["sensitivity"].size(), 2U);
  EXPECT_EQ(found["sensitivity"][0]["plans"][0]["policy"], "local");
  const Json& replays = found["replay"];
  ASSERT_EQ(replays.size(), 6U);
  EXPECT_EQ(replays[0]["inferences"], 20);
  EXPECT_DOUBLE_EQ(replays[0]["seconds"]["mean"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(replays[0]["joules"]["mean"].get<double>(), 2 * 13.35);
  EXPECT_EQ(replays[2]["plans"].size() >= 1, true);
  EXPECT_LE(replays[3]["seconds"]["most"].get<double>(), replays[3]["deadline"].get<double>() * (1 + 1e-9));
  EXPECT_EQ(replays[3]["missed"], 0);
  EXPECT_LE(replays[4]["seconds"]["mean"].get<double>(), 2 + 1e-9);
  EXPECT_EQ(replays[5]["each"].size(), 20U);
  EXPECT_EQ(found, answer(request));
}

TEST(OperatorsJson, NamesWhatIsWrong) {
  const auto message = [](const Json& request) { return refusal([&] { plan_operators(request.dump()); }); };
  const auto expect = [&](const std::string& text, const std::string& path, const Json& value) {
    Json request = request_of(small_model());
    request[Json::json_pointer(path)] = value;
    EXPECT_NE(message(request).find(text), std::string::npos) << message(request);
  };
  expect("unknown key \"colour\"", "/colour", 1);
  expect("the link's up_bytes_per_second is 0", "/link/up", 0);
  expect("the policy \"best\" is not known", "/policies", {"best"});
  expect("compute_watts is -1", "/power", {{"compute_watts", -1}});
  expect("\"chunks\" below 1", "/chunks", 0);
  expect("operator 2 (pool) takes operand 2", "/model/operators/2/operands/0/producer", 2);
  expect("\"stride\": 0", "/model/operators/1/operands/0/map/stride", 0);
  expect("unknown key \"size\"", "/model/operators/1/operands/0/map/size", 3);
  expect("1 rows of \"begin\" and 10 of \"end\"", "/model/operators/1/operands/0/map",
         {{"begin", {0}}, {"end", Json(std::vector<int>(10, 1))}});
  expect("output 9 is not one of the 4 operators", "/model/outputs", {9});
  expect("operator 1 (conv).robot.per_row is -1", "/model/operators/1/robot/per_row", -1);
  expect("lacks \"bin_seconds\"", "/trace", {{"up", {1}}});
  EXPECT_NE(refusal([] { plan_operators("{"); }).find("is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
