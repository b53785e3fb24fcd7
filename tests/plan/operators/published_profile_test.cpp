// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/published_profile.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/timeline.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;

std::filesystem::path data_folder() { return std::filesystem::path(ATOLL_TESTS_FOLDER) / "data" / "intradp"; }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Row {
  std::string profile;  // "nsdi25_VGG19_BN"
  bool is_packed = false;
  double mbps = 0;
  double local_ms = 0;
  double all_offload_ms = 0;
  double best_layer_cut_ms = 0;
  double fluid_lower_bound_ms = 0;
};

std::vector<Row> derived_bounds() {
  std::stringstream lines(text_of(data_folder() / "derived_bounds.csv"));
  std::string line;
  std::getline(lines, line);
  std::vector<Row> rows;
  while (std::getline(lines, line)) {
    std::vector<std::string> fields;
    std::stringstream rest(line);
    for (std::string field; std::getline(rest, field, ',');) fields.push_back(field);
    EXPECT_EQ(fields.size(), 9U) << line;
    rows.push_back({fields[0] + "_" + fields[1], fields[2] == "packed", std::stod(fields[3]), std::stod(fields[4]),
                    std::stod(fields[5]), std::stod(fields[6]), std::stod(fields[7])});
  }
  return rows;
}

PublishedProfile profile_of(const Row& row) {
  const std::string text = text_of(data_folder() / "profiles" / (row.profile + ".json"));
  PublishedProfile profile = published_profile(text);
  if (!row.is_packed) return profile;
  // A byte per pixel and channel; a bit per voxel.
  const bool is_grid = profile.model == "agrnav";
  return published_profile(text, is_grid ? profile.input_values / 8 : profile.input_values);
}

// They were computed elsewhere from the same files, without latency, on a link of the same decimal Mbit/s for both
// directions together, and are printed with one decimal. Only the bounds of the detector with in-place operators
// differ by more than that rounding, by 0.1 %: their consumers take the operands here.
TEST(PublishedProfile, TheDerivedBoundsAreReproduced) {
  const std::vector<Row> rows = derived_bounds();
  ASSERT_EQ(rows.size(), 60U);
  for (const Row& row : rows) {
    const PublishedProfile profile = profile_of(row);
    const double rate = row.mbps * 1e6 / 8;
    const LinkCost link{rate, rate, 0, true};
    CutGraph cuts(profile.graph);
    const auto expect_near = [&](const char* what, double seconds, double ms) {
      EXPECT_NEAR(seconds * 1e3, ms, 0.001 * ms + 0.06)
          << what << " of " << row.profile << (row.is_packed ? ", packed" : "") << " at " << row.mbps << " Mbit/s";
    };
    expect_near("local", profile.graph.robot_seconds(), row.local_ms);
    expect_near("all offloaded", simulate(profile.graph, link, {}, everything_on(Side::kServer, profile.graph)).seconds,
                row.all_offload_ms);
    expect_near("the best layer cut", serial_seconds(best_layer_cut(cuts, link).totals, link), row.best_layer_cut_ms);
    expect_near("the fluid bound", fluid_bound(profile.graph, link).seconds, row.fluid_lower_bound_ms);
  }
}

TEST(PublishedProfile, EveryFileKeepsItsSums) {
  int read = 0;
  int without_server = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data_folder() / "profiles")) {
    const std::string text = text_of(entry.path());
    const auto json = nlohmann::json::parse(text);
    if (json["server_forward_ms"].is_null()) {
      ++without_server;
      EXPECT_NE(refusal([&] { published_profile(text); }).find("layer 0 (_start) has no \"server_ms\""),
                std::string::npos);
      continue;
    }
    ++read;
    const PublishedProfile profile = published_profile(text);
    EXPECT_EQ(profile.model, json["model"].get<std::string>());
    EXPECT_NEAR(profile.graph.robot_seconds() * 1e3, json["robot_sum_ms"].get<double>(), 0.011) << entry.path();
    EXPECT_NEAR(profile.graph.server_seconds() * 1e3, json["server_sum_ms"].get<double>(), 0.011) << entry.path();
    EXPECT_EQ(profile.graph.operators.front().bytes,
              profile.input_values * json["input_bytes_per_element"].get<std::int64_t>());
    EXPECT_GT(profile.graph.operators.front().rows, 1) << entry.path();
  }
  EXPECT_EQ(read, 17);
  EXPECT_EQ(without_server, 6);
}

TEST(PublishedProfile, ALittleOne) {
  const std::string text = R"({"model": "little", "input_bytes_per_element": 4, "layers": [
    {"idx": 0, "op": "_start", "input_from": [], "output_shapes": [[1, 3, 8, 10]], "output_bytes": 960,
     "robot_ms": 0, "server_ms": 0, "local_dim": 3, "barrier": true},
    {"idx": 1, "op": "dim", "input_from": [0], "output_shapes": [], "output_bytes": 0,
     "robot_ms": 1, "server_ms": 0.5, "local_dim": null, "excluded": true},
    {"idx": 2, "op": "conv", "input_from": [0, 1], "output_shapes": [[1, 4, 8, 4]], "output_bytes": 512,
     "robot_ms": 7, "server_ms": 1.5, "local_dim": 3, "barrier": false},
    {"idx": 3, "op": "__setitem__", "input_from": [2], "output_shapes": [], "output_bytes": 0,
     "robot_ms": 4, "server_ms": 2, "local_dim": 3, "barrier": false},
    {"idx": 4, "op": "flatten", "input_from": [2, 3], "output_shapes": [[1, 128]], "output_bytes": 512,
     "robot_ms": 5, "server_ms": 0, "local_dim": 1, "barrier": true},
    {"idx": 5, "op": "_end", "input_from": [4], "output_shapes": [[1, 128]], "output_bytes": 128,
     "robot_ms": 0, "server_ms": 0, "local_dim": null, "barrier": true}]})";
  const PublishedProfile profile = published_profile(text, 240);
  EXPECT_EQ(profile.input_values, 240);
  ASSERT_EQ(profile.graph.operators.size(), 3U);
  const Operator& conv = profile.graph.operators[1];
  EXPECT_EQ(conv.rows, 4);
  EXPECT_NEAR(conv.robot.seconds(4), 0.012, 1e-12);
  EXPECT_NEAR(conv.server.seconds(4), 0.004, 1e-12);
  ASSERT_EQ(conv.operands.size(), 1U);
  EXPECT_EQ(conv.operands[0].needed({1, 3}), (Region{2, 8}));
  EXPECT_EQ(conv.operands[0].needed({0, 1}), (Region{0, 3}));
  EXPECT_TRUE(conv.operands[0].needed({}).is_empty());
  const Operator& flatten = profile.graph.operators[2];
  EXPECT_EQ(flatten.rows, 1);
  EXPECT_EQ(flatten.bytes, 128);
  ASSERT_EQ(flatten.operands.size(), 1U);
  EXPECT_FALSE(flatten.operands[0].needed);
  EXPECT_EQ(profile.graph.operators[0].rows, 10);
  EXPECT_EQ(profile.graph.operators[0].bytes, 240);
  EXPECT_EQ(profile.graph.outputs, std::vector<int>{2});
}

TEST(PublishedProfile, NamesWhatIsWrong) {
  const auto message = [](const std::string& text) { return refusal([&] { published_profile(text); }); };
  const auto layers = [&](const std::string& list) {
    return message(R"({"model": "x", "input_bytes_per_element": 1, "layers": [)" + list + "]}");
  };
  const std::string start = R"({"idx": 0, "op": "_start", "input_from": [], "output_shapes": [[4]],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0, "local_dim": 0})";
  EXPECT_NE(message("no").find("is not JSON"), std::string::npos);
  EXPECT_NE(message(R"({"model": "x", "input_bytes_per_element": 1})").find("lacks \"layers\""), std::string::npos);
  EXPECT_NE(layers("").find("no outputs"), std::string::npos);
  EXPECT_NE(layers(R"({"idx": 0})").find("layer 0 lacks \"op\""), std::string::npos);
  EXPECT_NE(layers(start + R"(, {"idx": 1, "op": "relu", "input_from": [7], "output_shapes": [[4]],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0})")
                .find("layer 1 (relu) has \"input_from\": 7"),
            std::string::npos);
  EXPECT_NE(layers(start + R"(, {"idx": 1, "op": "relu", "input_from": [0], "output_shapes": [4],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0})")
                .find("output_shapes that are not lists"),
            std::string::npos);
  EXPECT_NE(layers(start + R"(, {"idx": 1, "op": "relu", "input_from": [0], "output_shapes": [[-4]],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0})")
                .find("a size that is not a count: -4"),
            std::string::npos);
  EXPECT_NE(layers(start + R"(, {"idx": 1, "op": "relu", "input_from": [0], "output_shapes": [[99999999999]],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0})")
                .find("a size that is not a count: 99999999999"),
            std::string::npos);
  EXPECT_NE(layers(R"({"idx": 0, "op": "_start", "input_from": [], "output_shapes": [[2000000000, 2000000000, 9]],
    "output_bytes": 4, "robot_ms": 0, "server_ms": 0})")
                .find("too many values"),
            std::string::npos);
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_NE(message(deep).find("nested deeper"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
