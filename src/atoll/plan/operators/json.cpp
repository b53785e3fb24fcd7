// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/json.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/plan/text.h"

namespace atl::plan {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RowCost, fixed, per_row)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Prediction, seconds, robot_busy, server_busy, up_bytes, down_bytes, joules,
                                   rows_twice)

namespace {

using json::Fields;
using json::Json;

using NeededRows = std::function<Region(Region)>;
constexpr std::int64_t kMaxOperatorRows = std::int64_t{1} << 40;
constexpr std::int64_t kMaxFactor = std::int64_t{1} << 20;

NeededRows window(Fields& fields) {
  const std::int64_t kernel = fields.integer("kernel", 1, 1, kMaxFactor);
  const std::int64_t stride = fields.integer("stride", 1, 1, kMaxFactor);
  const std::int64_t padding = fields.integer("padding", 0, -kMaxFactor, kMaxFactor);
  const std::int64_t dilation = fields.integer("dilation", 1, 1, kMaxFactor);
  return [=](Region rows) -> Region {
    if (rows.is_empty()) return {};
    return {std::max<std::int64_t>(0, rows.begin * stride - padding),
            (rows.end - 1) * stride - padding + dilation * (kernel - 1) + 1};
  };
}

NeededRows scale(Fields& fields) {
  const std::int64_t times = fields.integer("times", 1, 1, kMaxFactor);
  const std::int64_t over = fields.integer("over", 1, 1, kMaxFactor);
  return [=](Region rows) { return same_share(rows, times, over); };
}

NeededRows by_row(Fields& fields, std::int64_t rows) {
  const std::vector<std::int64_t> begins = fields.integers("begin");
  const std::vector<std::int64_t> ends = fields.integers("end");
  const auto table = std::make_shared<std::vector<Region>>();
  if (begins.size() != ends.size() || static_cast<std::int64_t>(begins.size()) != rows) {
    refuse(fields.what() + " has " + std::to_string(begins.size()) + " rows of \"begin\" and " +
           std::to_string(ends.size()) + " of \"end\": give one for each of the " + counted(rows, "row") +
           " of the output");
  }
  for (std::size_t i = 0; i < begins.size(); ++i) table->push_back({std::max<std::int64_t>(0, begins[i]), ends[i]});
  return [table](Region region) -> Region {
    Region result;
    for (std::int64_t row = region.begin; row < region.end; ++row) {
      result = hull(result, (*table)[static_cast<std::size_t>(row)]);
    }
    return result;
  };
}

NeededRows read_map(const Json& value, const std::string& name, std::int64_t rows) {
  Fields fields(value, name);
  NeededRows result = fields.has("begin") || fields.has("end")    ? by_row(fields, rows)
                      : fields.has("times") || fields.has("over") ? scale(fields)
                                                                  : window(fields);
  fields.done();
  return result;
}

RowCost read_cost(Fields& parent, const std::string& key, const std::string& name) {
  if (!parent.has(key)) return {};
  Fields fields(parent.at(key), name + "'s " + key);
  RowCost cost{fields.number("fixed", 0), fields.number("per_row", 0)};
  fields.done();
  return cost;
}

Operator read_operator(const Json& value, std::size_t place) {
  Fields fields(value, "operator " + std::to_string(place));
  Operator result;
  result.name = fields.text("name", "");
  const std::string name = "operator " + std::to_string(place) + " (" + result.name + ")";
  result.rows = fields.integer("rows", 1);
  if (result.rows > kMaxOperatorRows) refuse(name + " has " + counted(result.rows, "row") + ": give fewer than 2^40");
  result.bytes = fields.integer("bytes");
  result.is_state = fields.boolean("state", false);
  result.robot = read_cost(fields, "robot", name);
  result.server = read_cost(fields, "server", name);
  if (fields.has("operands")) {
    for (const Json& each : fields.list("operands")) {
      Fields of(each, "an operand of " + name);
      const std::int64_t producer = of.integer("producer");
      if (producer < 0 || producer >= static_cast<std::int64_t>(place)) {
        refuse(name + " takes operand " + std::to_string(producer) + ": name an operator before it");
      }
      Operand operand{static_cast<int>(producer), {}};
      if (of.has("map")) operand.needed = read_map(of.at("map"), "the map of an operand of " + name, result.rows);
      of.done();
      result.operands.push_back(std::move(operand));
    }
  }
  fields.done();
  return result;
}

// Returns the window that gives these rows; none if they do not follow one.
std::optional<Json> window_of(const std::vector<Region>& rows, std::int64_t operand_rows) {
  const auto inner = std::adjacent_find(rows.begin(), rows.end(), [&](const Region& a, const Region& b) {
    return a.begin > 0 && b.begin > a.begin && a.end < operand_rows;
  });
  if (inner == rows.end()) return std::nullopt;
  const std::int64_t stride = (inner + 1)->begin - inner->begin;
  const std::int64_t padding = (inner - rows.begin()) * stride - inner->begin;
  const std::int64_t kernel = inner->size();
  if (kernel < 1 || kernel > kMaxFactor || stride > kMaxFactor || std::abs(padding) > kMaxFactor) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * stride - padding;
    if (rows[i].is_empty() || rows[i] != intersection({begin, begin + kernel}, {0, operand_rows})) return std::nullopt;
  }
  return Json{{"kernel", kernel}, {"stride", stride}, {"padding", padding}};
}

Json written_map(const Operand& operand, std::int64_t rows, std::int64_t operand_rows) {
  const std::vector<Region> all = needed_by_row(operand, rows, operand_rows);
  if (std::optional<Json> window = window_of(all, operand_rows)) return std::move(*window);
  Json begins = Json::array();
  Json ends = Json::array();
  for (const Region each : all) {
    begins.push_back(each.begin);
    ends.push_back(each.end);
  }
  return {{"begin", std::move(begins)}, {"end", std::move(ends)}};
}

constexpr const char* kLaneNames[] = {"robot", "up", "down", "server"};  // of Lane

}  // namespace

OperatorGraph read_operators(Fields& fields) {
  OperatorGraph graph;
  for (const Json& each : fields.list("operators")) {
    Operator read = read_operator(each, graph.operators.size());
    for (Operand& operand : read.operands) {
      if (!operand.needed) continue;
      const Region all{0, graph.operators[static_cast<std::size_t>(operand.producer)].rows};
      operand.needed = [map = std::move(operand.needed), all](Region rows) { return intersection(map(rows), all); };
    }
    graph.operators.push_back(std::move(read));
  }
  for (const std::int64_t output : fields.integers("outputs")) {
    if (output < 0 || output >= static_cast<std::int64_t>(graph.operators.size())) {
      refuse("output " + std::to_string(output) + " is not one of the " + counted(graph.operators.size(), "operator"));
    }
    graph.outputs.push_back(static_cast<int>(output));
  }
  check(graph);
  return graph;
}

Json write_operators(const OperatorGraph& graph) {
  Json operators = Json::array();
  for (const Operator& each : graph.operators) {
    Json operands = Json::array();
    for (const Operand& operand : each.operands) {
      Json written_operand{{"producer", operand.producer}};
      const Operator& producer = graph.operators.at(static_cast<std::size_t>(operand.producer));
      if (operand.needed) written_operand["map"] = written_map(operand, each.rows, producer.rows);
      operands.push_back(std::move(written_operand));
    }
    Json value{{"name", each.name}, {"rows", each.rows}, {"bytes", each.bytes}};
    if (each.is_state) value["state"] = true;
    if (!each.operands.empty()) {
      value["robot"] = each.robot;
      value["server"] = each.server;
      value["operands"] = std::move(operands);
    }
    operators.push_back(std::move(value));
  }
  return {{"operators", std::move(operators)}, {"outputs", graph.outputs}};
}

LinkCost read_link(const Json& value) {
  Fields fields(value, "the link");
  LinkCost link;
  link.up_bytes_per_second = fields.number("up");
  link.down_bytes_per_second = fields.number("down", link.up_bytes_per_second);
  link.latency = fields.number("latency", 0);
  link.is_half_duplex = fields.boolean("half_duplex", false);
  fields.done();
  check(link);
  return link;
}

Json write_operator_plan(const OperatorPlan& plan, const Timeline& timeline, bool is_whole) {
  Json value = static_cast<const Prediction&>(timeline);
  value.update(Json{{"policy", plan.policy}, {"link_busy", timeline.link_busy}, {"chunks", plan.chunks}});
  if (!is_whole) return value;
  value["shares"] = Json::array();
  for (const Share& share : plan.shares) {
    value["shares"].push_back({{share.robot.begin, share.robot.end}, {share.server.begin, share.server.end}});
  }
  value["events"] = Json::array();
  for (const Event& event : timeline.events) {
    value["events"].push_back({kLaneNames[static_cast<int>(event.lane)], event.operator_index, event.begin, event.end});
  }
  return value;
}

}  // namespace atl::plan
