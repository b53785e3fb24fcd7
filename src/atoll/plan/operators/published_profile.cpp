// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/published_profile.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "atoll/json/fields.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

constexpr double kMilliseconds = 1e-3;
constexpr std::uint64_t kMaxProfileRows = std::uint64_t{1} << 31;  // shares of rows are products of two such counts
constexpr std::int64_t kMaxValues = std::int64_t{1} << 40;

struct Layer {
  std::int64_t number = 0;
  std::string name;  // for messages
  std::string op;
  std::vector<std::int64_t> operands;
  std::vector<std::int64_t> shape;  // of the first output; empty when there is none
  std::int64_t bytes = 0;
  std::int64_t rows = 1;
  double robot_seconds = 0;
  double server_seconds = 0;
  bool is_left_out = false;
};

std::vector<std::int64_t> first_shape(const Json& shapes, const std::string& name) {
  if (shapes.empty()) return {};
  if (!shapes[0].is_array()) refuse(name + " has output_shapes that are not lists: " + shapes.dump().substr(0, 80));
  std::vector<std::int64_t> shape;
  for (const Json& size : shapes[0]) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > kMaxProfileRows) {
      refuse(name + " has a size that is not a count: " + size.dump().substr(0, 80));
    }
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

Layer layer_of(const Json& json, std::size_t place) {
  Layer layer;
  layer.name = "layer " + std::to_string(place);
  Fields fields(json, layer.name);
  layer.number = fields.integer("idx");
  layer.op = fields.text("op");
  layer.name += " (" + layer.op + ")";
  if (!fields.has("server_ms")) refuse(layer.name + " has no \"server_ms\": give a profile with the server's times");
  layer.robot_seconds = fields.number("robot_ms") * kMilliseconds;
  layer.server_seconds = fields.number("server_ms") * kMilliseconds;
  layer.operands = fields.integers("input_from");
  layer.shape = first_shape(fields.list("output_shapes"), layer.name);
  layer.bytes = fields.integer("output_bytes");
  layer.is_left_out = fields.boolean("excluded", false) || layer.shape.empty();
  const std::int64_t split = fields.integer("local_dim", -1);
  const bool is_split = split >= 0 && split < static_cast<std::int64_t>(layer.shape.size()) &&
                        (layer.operands.empty() || !fields.boolean("barrier", false));
  if (is_split) layer.rows = std::max<std::int64_t>(1, layer.shape[static_cast<std::size_t>(split)]);
  return layer;
}

void add_time(Operator& to, double robot_seconds, double server_seconds) {
  to.robot.per_row += robot_seconds / static_cast<double>(to.rows);
  to.server.per_row += server_seconds / static_cast<double>(to.rows);
}

class Builder {
 public:
  void add(const Layer& layer) {
    std::vector<int> operands = operands_of(layer);
    if (layer.op == "_end") {
      end(layer, std::move(operands));
    } else if (layer.is_left_out) {
      give_time(layer, operands);
      stands_for_[layer.number] = std::move(operands);
    } else {
      stands_for_[layer.number] = {static_cast<int>(graph_.operators.size())};
      graph_.operators.push_back(operator_of(layer, operands));
    }
  }

  OperatorGraph take() { return std::move(graph_); }

 private:
  bool is_input(int index) const { return graph_.operators[static_cast<std::size_t>(index)].is_input(); }

  std::vector<int> operands_of(const Layer& layer) const {
    std::vector<int> operands;
    for (const std::int64_t number : layer.operands) {
      const auto found = stands_for_.find(number);
      if (found == stands_for_.end()) {
        refuse(layer.name + " has \"input_from\": " + std::to_string(number) + ", which does not come before it");
      }
      for (const int index : found->second) {
        if (std::find(operands.begin(), operands.end(), index) == operands.end()) operands.push_back(index);
      }
    }
    return operands;
  }

  void give_time(const Layer& layer, const std::vector<int>& operands) {
    if (!operands.empty() && !is_input(operands.front())) {
      add_time(graph_.operators[static_cast<std::size_t>(operands.front())], layer.robot_seconds, layer.server_seconds);
    } else {
      robot_seconds_left_ += layer.robot_seconds;
      server_seconds_left_ += layer.server_seconds;
    }
  }

  Operator operator_of(const Layer& layer, const std::vector<int>& operands) {
    Operator result;
    result.name = layer.op;
    result.rows = layer.rows;
    result.bytes = layer.bytes;
    for (const int index : operands) {
      Operand& operand = result.operands.emplace_back();
      operand.producer = index;
      const std::int64_t rows = graph_.operators[static_cast<std::size_t>(index)].rows;
      if (rows == 1 || layer.rows == 1) continue;
      if (rows == layer.rows) {  // without divisions, because planning calls this for every row
        operand.needed = [](Region region) { return region.is_empty() ? Region{} : region; };
      } else {
        operand.needed = [rows, users = layer.rows](Region region) { return same_share(region, rows, users); };
      }
    }
    add_time(result, layer.robot_seconds, layer.server_seconds);
    if (operands.empty()) return result;
    add_time(result, std::exchange(robot_seconds_left_, 0), std::exchange(server_seconds_left_, 0));
    return result;
  }

  void end(const Layer& layer, std::vector<int> operands) {
    give_time(layer, operands);
    if (operands.size() == 1) graph_.operators[static_cast<std::size_t>(operands.front())].bytes = layer.bytes;
    graph_.outputs = std::move(operands);
  }

  OperatorGraph graph_;
  std::map<std::int64_t, std::vector<int>> stands_for_;  // by layer: the operators whose outputs its consumers take
  double robot_seconds_left_ = 0;
  double server_seconds_left_ = 0;
};

}  // namespace

PublishedProfile published_profile(const std::string& json, std::optional<std::int64_t> input_bytes) {
  const Json root = json::parse(json, "a profile");
  Fields fields(root, "the profile");
  PublishedProfile profile;
  profile.model = fields.text("model");
  const Json& layers = fields.list("layers");
  Builder builder;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer layer = layer_of(layers[i], i);
    if (layer.operands.empty()) {
      profile.input_values = 1;
      for (const std::int64_t size : layer.shape) {
        if (size > 0 && profile.input_values > kMaxValues / size) refuse(layer.name + " has too many values");
        profile.input_values *= size;
      }
      layer.bytes = input_bytes.value_or(layer.bytes);
    }
    builder.add(layer);
  }
  profile.graph = builder.take();
  check(profile.graph);
  return profile;
}

}  // namespace atl::plan
