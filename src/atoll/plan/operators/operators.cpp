// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/operators.h"

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

void check_cost(const std::string& name, const RowCost& cost) {
  require_amount(name + ".fixed", cost.fixed);
  require_amount(name + ".per_row", cost.per_row);
}

double seconds_of(const std::vector<Operator>& operators, RowCost Operator::*cost) noexcept {
  double seconds = 0;
  for (const Operator& each : operators) seconds += (each.*cost).seconds(each.rows);
  return seconds;
}

bool is_free(const RowCost& cost) { return cost.fixed == 0 && cost.per_row == 0; }

void check_operand(const OperatorGraph& graph, int index, const Operand& operand) {
  const std::string name = operator_name(graph, index);
  if (operand.producer < 0 || operand.producer >= index) {
    refuse(name + " takes operand " + std::to_string(operand.producer) +
           ", which does not come before it: put operators in an order in which they can run");
  }
  if (!operand.needed) return;
  if (graph.operators[as_index(operand.producer)].is_state) {
    refuse(name + " says which rows of the state " + std::to_string(operand.producer) +
           " it needs, but a state is needed for all rows: leave `needed` empty");
  }
  const int one = graph.operators[as_index(operand.producer)].rows == 1 ? operand.producer : index;
  if (graph.operators[as_index(one)].rows == 1) {
    refuse(name + " says which rows of operand " + std::to_string(operand.producer) + " it needs, but " +
           operator_name(graph, one) + " has 1 row, which is not split: leave `needed` empty");
  }
}

}  // namespace

double OperatorGraph::robot_seconds() const noexcept { return seconds_of(operators, &Operator::robot); }
double OperatorGraph::server_seconds() const noexcept { return seconds_of(operators, &Operator::server); }

std::string operator_name(const OperatorGraph& graph, int index) {
  return "operator " + std::to_string(index) + " (" + graph.operators[as_index(index)].name + ")";
}

std::vector<bool> wanted_operators(const OperatorGraph& graph) {
  std::vector<bool> wanted(graph.operators.size(), false);
  for (const int output : graph.outputs) wanted[as_index(output)] = true;
  for (std::size_t i = wanted.size(); i-- > 0;) {
    if (!wanted[i]) continue;
    for (const Operand& operand : graph.operators[i].operands) wanted[as_index(operand.producer)] = true;
  }
  return wanted;
}

std::vector<Region> needed_by_row(const Operand& operand, std::int64_t users, std::int64_t rows) {
  std::vector<Region> needed;
  needed.reserve(static_cast<std::size_t>(users));
  for (std::int64_t row = 0; row < users; ++row) {
    needed.push_back(intersection(operand.needed({row, row + 1}), {0, rows}));
  }
  return needed;
}

void check(const OperatorGraph& graph) {
  const int count = static_cast<int>(graph.operators.size());
  for (int i = 0; i < count; ++i) {
    const Operator& each = graph.operators[as_index(i)];
    const std::string name = operator_name(graph, i);
    if (each.rows < 1) refuse(name + " has " + counted(each.rows, "row") + ": give at least 1");
    if (each.bytes < 0) refuse(name + " has " + counted(each.bytes, "byte") + ": give at least 0");
    check_cost(name + ".robot", each.robot);
    check_cost(name + ".server", each.server);
    if (each.operands.empty() && !(is_free(each.robot) && is_free(each.server))) {
      refuse(name + " has no operands, so it is an input, but has a cost: move the cost to its consumers");
    }
    if (each.is_state && each.operands.empty()) refuse(name + " is a state without operands: give it one");
    for (const Operand& operand : each.operands) check_operand(graph, i, operand);
  }
  if (graph.outputs.empty()) refuse("a graph has no outputs: name the operators whose outputs the robot needs");
  for (const int output : graph.outputs) {
    if (output < 0 || output >= count) {
      refuse("output " + std::to_string(output) + " is not one of the " + counted(count, "operator"));
    }
    if (graph.operators[as_index(output)].is_state) {
      refuse("output " + std::to_string(output) + " is a state: name the operator that uses it");
    }
  }
}

void check(const LinkCost& link) {
  require_rate("the link's up_bytes_per_second", link.up_bytes_per_second);
  require_rate("the link's down_bytes_per_second", link.down_bytes_per_second);
  require_amount("the link's latency", link.latency);
}

}  // namespace atl::plan
