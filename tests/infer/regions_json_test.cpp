// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/regions_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "atoll/infer/graph_json.h"
#include "infer_cases.h"

namespace atl::infer {
namespace {

using Json = nlohmann::json;

std::string pooled() {
  test::Builder builder;
  const int input = builder.input({1, 2, 8}, Dtype::kFloat32);
  const int best = builder.call("aten::max_pool1d", {TensorId{input}, Ints{3}, Ints{2}, Ints{1}, Ints{1}, false},
                                {1, 2, 4}, Dtype::kFloat32);
  builder.output(builder.call("aten::softmax.int", {TensorId{best}, -1, {}}, {1, 2, 4}, Dtype::kFloat32));
  return to_json(builder.graph());
}

TEST(RegionsJson, Splits) {
  const Json block = Json::parse(R"json({"locality": "block", "state_bytes": 0, "operands":
    [{"tensor": 0, "dim": 2, "map": "window(kernel 3, stride 2, padding 1, dilation 1)"}]})json");
  EXPECT_EQ(Json::parse(split_json(pooled(), 0, 2)), block);
  const Json partial = Json::parse(R"({"locality": "partial", "state_bytes": 16, "operands":
    [{"tensor": 1, "dim": -1, "map": "whole"}]})");
  EXPECT_EQ(Json::parse(split_json(pooled(), 1, 2)), partial);
}

TEST(RegionsJson, Slices) {
  const Json first = Json::parse(R"({"operands": [{"tensor": 0, "dim": 2, "begin": 0, "end": 4}],
    "pads": [{"operand": 0, "dim": 2, "low": 1, "high": 0, "value": {"float": "-inf"}}],
    "changes": [{"argument": 3, "value": {"ints": [0]}}], "keep": [0, 2]})");
  EXPECT_EQ(Json::parse(slice_json(pooled(), 0, 2, 0, 2)), first);
  const Json none = Json::parse(R"({"operands": [], "pads": [], "changes": [], "keep": [0, 0]})");
  EXPECT_EQ(Json::parse(slice_json(pooled(), 0, 2, 3, 3)), none);
}

TEST(RegionsJson, Dims) {
  const Json rows = Json::parse(R"({"dims": [2, 2, 2], "local": 1, "partial": 1, "global": 0, "constant": 0})");
  EXPECT_EQ(Json::parse(dims_json(pooled(), 0, 2)), rows);
  const Json channels = Json::parse(R"({"dims": [1, 1, 1], "local": 2, "partial": 0, "global": 0, "constant": 0})");
  EXPECT_EQ(Json::parse(dims_json(pooled(), 0, 1)), channels);
}

TEST(RegionsJson, RefusesNodesThatAreNotThere) {
  const auto refused = [](std::int64_t node) {
    return test::failure(ErrorKind::kInvalidArgument, [&] { split_json(pooled(), node, 0); });
  };
  EXPECT_EQ(refused(2), "there is no node 2: the graph has 2");
  EXPECT_NE(refused(-1), "");
  EXPECT_NE(test::failure(ErrorKind::kProtocol, [] { dims_json("{}", 0, 0); }), "");
}

}  // namespace
}  // namespace atl::infer
