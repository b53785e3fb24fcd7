// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/plan.h"

#include <nlohmann/json.hpp>

#include "tests/plan/plan_cases.h"

namespace atl::plan::fleet {
namespace {

using test::refusal;
using Json = nlohmann::json;

// 8 rows of 100 bytes, then 0.4 s on the robot or 0.1 s on the server, and a result of 10 bytes.
Json little_profile() {
  return Json::parse(R"({"model": "little", "input_bytes_per_element": 1, "layers": [
    {"idx": 0, "op": "_start", "input_from": [], "output_shapes": [[1, 100, 8]], "output_bytes": 800,
     "robot_ms": 0, "server_ms": 0, "local_dim": 2, "barrier": true},
    {"idx": 1, "op": "conv", "input_from": [0], "output_shapes": [[1, 100, 8]], "output_bytes": 3200,
     "robot_ms": 400, "server_ms": 100, "local_dim": 2, "barrier": false},
    {"idx": 2, "op": "head", "input_from": [1], "output_shapes": [[10]], "output_bytes": 40,
     "robot_ms": 1, "server_ms": 1, "local_dim": null, "barrier": true},
    {"idx": 3, "op": "_end", "input_from": [2], "output_shapes": [[10]], "output_bytes": 10,
     "robot_ms": 0, "server_ms": 0, "local_dim": null, "barrier": true}]})");
}

Json robots(int count) {
  return {{"profile", little_profile().dump()},
          {"link", {{"up", 20000}, {"latency", 0.001}, {"half_duplex", true}}},
          {"count", count}};
}

TEST(FleetJson, AnswersForAllPolicies) {
  const Json request{{"robots", {robots(3)}}, {"turns", 1}, {"search_seconds", 5}, {"seed", 7}};
  const Json answer = Json::parse(plan_fleet_json(request.dump()));
  ASSERT_EQ(answer["robots"].size(), 3U);
  EXPECT_EQ(answer["robots"][0]["model"], "little");
  EXPECT_EQ(answer["robots"][0]["plans"][0]["policy"], "local");
  EXPECT_NEAR(answer["robots"][0]["plans"][0]["seconds"].get<double>(), 0.401, 1e-9);
  std::vector<std::string> names;
  double selfish = 0;
  double aware = 0;
  for (const Json& policy : answer["policies"]) {
    names.push_back(policy["policy"]);
    ASSERT_EQ(policy["robots"].size(), 3U);
    double sum = 0;
    for (const Json& robot : policy["robots"]) {
      sum += robot["seconds"].get<double>();
      EXPECT_GE(robot["p95"], robot["seconds"].get<double>() * 0.5);
      EXPECT_GT(robot["frames"], 3);
      EXPECT_GT(robot["joules"], 0);
    }
    EXPECT_NEAR(policy["seconds"].get<double>(), sum, 1e-9);
    EXPECT_GE(policy["seconds"], answer["bound"].get<double>() * 0.95);  // which holds in the long run
    if (names.back() == "selfish") selfish = policy["seconds"];
    if (names.back() == "aware") aware = policy["seconds"];
  }
  EXPECT_EQ(names, (std::vector<std::string>{"local", "selfish", "aware", "distributed"}));
  EXPECT_LE(aware, selfish);
  EXPECT_EQ(answer["policies"][3]["rounds"].size(), 48U);
  EXPECT_LT(answer["policies"][3]["settled"], 48);
  EXPECT_EQ(plan_fleet_json(request.dump()), answer.dump());
}

TEST(FleetJson, ReadsPeriodsAndObjectives) {
  Json slow = robots(1);
  slow["period"] = 2;
  slow["first"] = 0.5;
  slow["input_bytes"] = 100;
  const Json request{
      {"robots", {slow, robots(1)}}, {"objective", "worst"}, {"seconds", 9}, {"airtime", 0.5}, {"patience", 0},
      {"joule_seconds", 0.1},        {"simulations", 5},     {"rounds", 3}};
  const Json answer = Json::parse(plan_fleet_json(request.dump()));
  EXPECT_EQ(answer["policies"][0]["robots"][0]["frames"], 5);
  const Json& local = answer["policies"][0];
  const double worst = local["robots"][0]["seconds"].get<double>() + 0.1 * local["robots"][0]["joules"].get<double>();
  EXPECT_NEAR(local["value"].get<double>(), worst, 1e-9);
  EXPECT_EQ(answer["policies"][3]["rounds"].size(), 3U);
}

TEST(FleetJson, NamesWhatIsWrong) {
  const auto message = [](const Json& request) { return refusal([&] { plan_fleet_json(request.dump()); }); };
  const auto expect = [](const std::string& part, const std::string& whole) {
    EXPECT_NE(whole.find(part), std::string::npos) << whole;
  };
  expect("is not JSON", refusal([] { plan_fleet_json("{"); }));
  expect("lacks \"robots\"", message(Json::object()));
  expect("has no robots", message({{"robots", Json::array()}}));
  expect("\"count\": 0", message({{"robots", {robots(0)}}}));
  expect("\"best\" is not known", message({{"robots", {robots(1)}}, {"objective", "best"}}));
  expect("\"speed\"", message({{"robots", {robots(1)}}, {"speed", 1}}));
  Json bad = robots(1);
  bad["link"]["up"] = 0;
  expect("up_bytes_per_second is 0", message({{"robots", {bad}}}));
  bad = robots(1);
  bad["input_bytes"] = -1;
  expect("\"input_bytes\": -1", message({{"robots", {bad}}}));
  bad.erase("input_bytes");
  bad.erase("profile");
  expect("lacks \"profile\"", message({{"robots", {bad}}}));
}

}  // namespace
}  // namespace atl::plan::fleet
