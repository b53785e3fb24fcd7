// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "infer_cases.h"
#include "tests/fuzz/graph_target.h"
#include "tests/support/graph_text.h"

namespace atl::infer {
namespace {

using test::any_graph;
using test::expect_words;
using test::failure;
using Json = nlohmann::json;

std::string refused(const std::string& text) {
  return failure(ErrorKind::kProtocol, [&] { graph_from_json(text); });
}

// The error for the graph in which the value at `place` is replaced by `value`.
std::string refused(const std::string& place, const Json& value) {
  Json json = Json::parse(to_json(any_graph()));
  json[Json::json_pointer(place)] = value;
  return refused(json.dump());
}

TEST(GraphJson, RoundTrips) {
  const std::string text = to_json(any_graph());
  const Graph again = graph_from_json(text);
  EXPECT_EQ(to_json(again), text);
  // Compares everything except the NaN, which does not equal itself.
  Graph expected = any_graph();
  Graph found = again;
  EXPECT_TRUE(std::isnan(std::get<double>(found.nodes.back().args.back())));
  expected.nodes.back().args.pop_back();
  found.nodes.back().args.pop_back();
  EXPECT_EQ(found, expected);
  EXPECT_EQ(graph_from_json(to_json(Graph{})), Graph{});
}

TEST(GraphJson, AModuleIsForMessages) {
  Graph graph = any_graph();
  graph.nodes.front().module = "layer1.0";
  EXPECT_EQ(graph_from_json(to_json(graph)).nodes.front().module, "layer1.0");
  EXPECT_EQ(described(graph, graph.nodes.front()), "node 0 (" + graph.nodes.front().name() + " in layer1.0)");
  EXPECT_EQ(described(graph, Node(graph.nodes.front())), graph.nodes.front().name() + " in layer1.0");
  expect_words(refused("/nodes/0/module", "a\nb"), "control characters");
  expect_words(refused("/nodes/0/module", std::string(1001, 'a')), "at most 1000");
}

TEST(GraphJson, KeysAndSpacesDoNotMatter) {
  const std::string text = to_json(any_graph());
  EXPECT_EQ(to_json(graph_from_json(Json::parse(text).dump(3))), text);
  Json json = Json::parse(text);
  json["structure"] = {{"input", ""}, {"output", ""}};
  Json without = json;
  without.erase("structure");
  EXPECT_EQ(to_json(graph_from_json(without.dump())), json.dump());
}

TEST(GraphJson, ReadsArguments) {
  const auto argument = [](const std::string& text) {
    const std::string graph = R"({"atoll_graph": 1, "tensors": [{"dtype": "float32", "shape": [2]}], "inputs": [],
      "weights": [], "nodes": [{"op": "my::op", "overload": "", "args": [)" +
                              text + R"(], "outputs": [0], "list": false}],
      "outputs": []})";
    return graph_from_json(graph).nodes[0].args[0];
  };
  EXPECT_EQ(argument("null"), Argument{});
  EXPECT_EQ(argument("true"), Argument{true});
  EXPECT_EQ(argument("-3"), Argument{-3});
  EXPECT_EQ(argument("3.0"), Argument{3.0});
  EXPECT_EQ(argument("1e3"), Argument{1000.0});
  EXPECT_EQ(argument(R"({"float": "-inf"})"), Argument{-HUGE_VAL});
  EXPECT_EQ(argument(R"({"ints": []})"), Argument{Ints{}});
  EXPECT_EQ(argument(R"({"floats": [1, 2.5, "inf"]})"), (Argument{Floats{1, 2.5, HUGE_VAL}}));
  EXPECT_EQ(argument(R"({"bools": [true, false]})"), (Argument{Bools{true, false}}));
  EXPECT_EQ(argument(R"({"tensors": [null]})"), Argument{TensorIds{{std::nullopt}}});
  EXPECT_EQ(argument(R"({"text": "none"})"), Argument{Text{"none"}});
  EXPECT_EQ(argument(R"({"dtype": "bfloat16"})"), Argument{Dtype::kBfloat16});
  EXPECT_EQ(argument(R"({"memory_format": "channels_last"})"), Argument{MemoryFormat::kChannelsLast});
  EXPECT_EQ(argument(R"({"layout": "strided"})"), Argument{Layout::kStrided});
  EXPECT_EQ(argument(R"({"device": true})"), Argument{RunnersDevice{}});
}

TEST(GraphJson, TheEndOfASliceMayBeTheLargestInteger) {
  test::Builder builder;
  const int input = builder.input({8});
  builder.call("aten::slice.Tensor", {TensorId{input}, 0, 2, {}, 1}, {6});
  const std::string plain = to_json(builder.graph());
  Json json = Json::parse(plain);
  json["nodes"][0]["args"][3] = INT64_MAX;
  EXPECT_EQ(to_json(graph_from_json(json.dump())), plain);
  json["nodes"][0]["args"][2] = INT64_MAX;
  expect_words(refused(json.dump()), "node 0 (aten::slice.Tensor)'s argument 2 is 9223372036854775807");
}

TEST(GraphJson, WhatIsOddIsNamed) {
  expect_words(refused("/atoll_graph", 2), "version 2");
  expect_words(refused("/tensors/1", 5), "tensor 1 is 5");
  expect_words(refused("/tensors/1/dtype", "float31"), "tensor 1 has the dtype \"float31\"");
  expect_words(refused("/tensors/1/shape", {1, 2.5}), "tensor 1's \"shape\" is 2.5");
  expect_words(refused("/tensors/1/shape", Json(std::vector<int>(9, 1))), "tensor 1's \"shape\" has 9 entries");
  expect_words(refused("/tensors/1/stride", 1), "tensor 1 has an unknown key \"stride\"");
  expect_words(refused("/inputs/0", -1), "the graph's \"inputs\" is -1");
  expect_words(refused("/weights/0/name", 3), "weight 0's \"name\" is 3");
  expect_words(refused("/nodes/0/op", nullptr), "node 0's \"op\" is null");
  expect_words(refused("/nodes/0/list", 1), "node 0's \"list\" is 1");
  expect_words(refused("/nodes/0/outputs/0", 1e9), "node 0's \"outputs\"");
  expect_words(refused("/nodes/1/args/1", "tanh"), "node 1 (aten::gelu)'s argument 1 is \"tanh\"");
  expect_words(refused("/nodes/1/args/1", {{"text", "tanh"}, {"ints", {1}}}), "one key that names its type");
  expect_words(refused("/nodes/1/args/1", Json::object()), "one key that names its type");
  expect_words(refused("/nodes/1/args/1", {{"tuple", 1}}), "one of the forms");
  expect_words(refused("/nodes/1/args/1", {{"layout", "sparse_coo"}}), "one of the forms");
  expect_words(refused("/nodes/1/args/1", {{"device", "cuda:0"}}), "one of the forms");
  expect_words(refused("/nodes/1/args/1", {{"ints", 3}}), "a list");
  expect_words(refused("/nodes/1/args/1", {{"ints", Json(std::vector<int>(1001, 1))}}), "1001 entries");
  expect_words(refused("/nodes/1/args/1", {{"float", "infinity"}}), "\"-inf\"");
  expect_words(refused("/nodes/1/args/1", {{"memory_format", "nhwc"}}), "the name of a memory format");
  expect_words(refused("/nodes/1/args/1", {{"tensor", 99}}), "node 1 (aten::gelu) uses tensor 99");
  expect_words(refused("/nodes/1/args/1", 1LL << 40), "less than 2^40");
  expect_words(refused("/nodes/1/args/1", UINT64_MAX), "less than 2^40");
  expect_words(refused("/nodes/1/args/1", INT64_MIN), "less than 2^40");
  expect_words(refused("/outputs/0", {{"constant", {{"tensor", 0}}}}), "output 0 is a constant that is a tensor");
  expect_words(refused("/outputs/0", Json::object()), "output 0 lacks \"tensor\"");
  expect_words(refused("/structure/input", 1), "the graph's structure's \"input\"");
  expect_words(refused("/more", 1), "unknown key \"more\"");
}

TEST(GraphJson, WhatIsNoJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "1", "{\"atoll_graph\": 1}", "\xff", "{\"a\": 1e999}", "nan"}) {
    EXPECT_NE(refused(text), "") << text;
  }
  expect_words(refused(R"({"atoll_graph": 1, "atoll_graph": 1})"), "\"atoll_graph\" twice");
  expect_words(refused(std::string(1'000'000, '[')), "nested deeper");
  expect_words(refused("{\"a\": " + std::string(20, '[') + std::string(20, ']') + "}"), "nested deeper");
  expect_words(refused(std::string(kMaxGraphBytes + 1, ' ')), "at most");
  // Brackets in texts are not structure.
  Graph graph = any_graph();
  graph.input_structure = "\"\\[[[[[[[[[[[[[[[[[[{{";
  EXPECT_EQ(graph_from_json(to_json(graph)).input_structure, graph.input_structure);
}

// The fuzz target on texts of which some characters are changed: broken promises abort the test.
TEST(GraphJson, MutatedTextsAreRefusedOrRead) {
  test::Dice dice(5);
  const std::string seed = to_json(any_graph());
  const std::string digits = "0123456789-.,:[]{}\"eaftnu";
  for (int i = 0; i < 4000; ++i) {
    std::string text = seed;
    for (std::int64_t k = dice.integer(1, 4); k > 0; --k) {
      const auto at = static_cast<std::size_t>(dice.integer(0, static_cast<std::int64_t>(text.size()) - 1));
      const char other = digits[static_cast<std::size_t>(dice.integer(0, 24))];
      switch (dice.integer(0, 3)) {
        case 0: text.erase(at, static_cast<std::size_t>(dice.integer(1, 8))); break;
        case 1: text.insert(at, 1, other); break;
        case 2: text.insert(at, text.substr(at, static_cast<std::size_t>(dice.integer(1, 30)))); break;
        default: text[at] = other; break;
      }
    }
    fuzz::graph(text);
  }
}

}  // namespace
}  // namespace atl::infer
