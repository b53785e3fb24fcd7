// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/regions.h"

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/plan/text.h"

namespace atl::infer {
namespace {

// The rule of an operator of the table, by its full name; null if it has none.
const Rule* own_rule(const std::string& name) {
  const auto known = operators::table().find(name);
  return known == operators::table().end() || !known->second.rule.split ? nullptr : &known->second.rule;
}

// The rules that users add before they split a graph. They are never removed or replaced, and a map keeps its values in
// place.
class UserRules {
 public:
  const Rule* find(const Node& node) const {
    const std::shared_lock lock(mutex_);
    auto found = rules_.find(node.name());
    if (found == rules_.end()) found = rules_.find(node.op);
    return found == rules_.end() ? nullptr : &found->second;
  }
  void add(const std::string& op, const Rule& rule) {
    const std::unique_lock lock(mutex_);
    if (own_rule(op) != nullptr || !rules_.try_emplace(op, rule).second) {
      plan::refuse("the operator " + op + " already has a rule");
    }
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::string, Rule> rules_;
};

UserRules& user_rules() {
  static UserRules rules;
  return rules;
}

const Rule* rule_of(const Node& node) {
  const Rule* own = own_rule(node.name());
  return own == nullptr ? user_rules().find(node) : own;
}

// Calls a function of a rule; none for a call that does not fit its operator. Errors of users' rules are theirs.
template <typename Function, typename... Of>
auto by_rule(const Rule& rule, Function Rule::*function, const NodeView& view, const Of&... of)
    -> decltype((rule.*function)(view, of...)) {
  if (!(rule.*function)) return std::nullopt;
  try {
    return (rule.*function)(view, of...);
  } catch (const UnfitCall&) {
    if (&rule != own_rule(view.node().name())) throw;
    return std::nullopt;
  }
}

void require_dim(const NodeView& view, int output_dim) {
  if (output_dim < 0 || output_dim >= view.output_rank()) {
    plan::refuse(view.name() + ", has no dimension " + std::to_string(output_dim) + ": its output has " +
                 std::to_string(view.output_rank()));
  }
}

[[noreturn]] void refuse_dim(const NodeView& view, std::size_t operand, int dim) {
  plan::refuse(view.name() + ", has no dimension " + std::to_string(dim) + " of operand " + std::to_string(operand));
}

// A call may read fewer rows than are declared, never more.
void require_declared(const NodeView& view, const NodeSplit& split, const SlicedCall& call, Region rows) {
  bool good = call.operands.size() == split.operands.size() && call.keep.begin >= 0 && call.keep.size() == rows.size();
  for (std::size_t i = 0; good && i < split.operands.size(); ++i) {
    const OperandSplit& declared = split.operands[i];
    const OperandSlice& read = call.operands[i];
    good = declared.tensor == read.tensor &&
           (declared.dim < 0 ||
            (declared.dim == read.dim && needed(declared.map, rows, view.rows(i, declared.dim)).holds(read.rows)));
  }
  if (!good) {
    throw Error(ErrorKind::kInternal,
                "the rule of " + view.name() + ", reads rows that it does not declare for " + to_string(rows));
  }
}

// Returns whether the call needs all rows of its operands for all rows of the output, so that it can be made unchanged.
bool is_whole_call(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  if (rows != Region{0, view.output_rows(output_dim)}) return false;
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    const OperandSplit& operand = split.operands[i];
    if (operand.dim < 0) continue;
    const std::int64_t count = view.rows(i, operand.dim);
    if (needed(operand.map, rows, count).size() != count) return false;
  }
  return true;
}

}  // namespace

std::optional<NodeSplit> split(const Graph& graph, const Node& node, int output_dim) {
  const NodeView view(graph, node);
  require_dim(view, output_dim);
  const Rule* const rule = rule_of(node);
  if (rule == nullptr) return std::nullopt;
  if (auto local = by_rule(*rule, &Rule::split, view, output_dim)) return local;
  if (view.operands() == 0 || output_dim >= view.rank(0)) return std::nullopt;
  const auto bytes = by_rule(*rule, &Rule::partial_bytes, view, std::size_t{0}, output_dim);
  if (!bytes) return std::nullopt;
  NodeSplit sums = operators::whole(view, Locality::kPartial);
  sums.state_bytes = *bytes;
  return sums;
}

SlicedCall slice(const Graph& graph, const Node& node, int output_dim, Region rows) {
  const NodeView view(graph, node);
  require_dim(view, output_dim);
  if (rows.is_empty()) return {};
  if (!Region{0, view.output_rows(output_dim)}.holds(rows)) {
    plan::refuse(view.name() + ", has " + std::to_string(view.output_rows(output_dim)) + " rows, not " +
                 to_string(rows));
  }
  const Rule* const rule = rule_of(node);
  const auto local = rule != nullptr && rule->split ? rule->split(view, output_dim) : std::nullopt;
  if (!local) plan::refuse(view.name() + ", cannot be computed in parts along dimension " + std::to_string(output_dim));
  const bool as_it_is = !rule->slice || is_whole_call(view, *local, output_dim, rows);
  SlicedCall call = as_it_is ? call_by_rows(view, *local, rows) : rule->slice(view, *local, output_dim, rows);
  require_declared(view, *local, call, rows);
  for (const Change& change : call.changes)
    static_cast<void>(view.argument(change.argument));  // throws if it does not exist
  return call;
}

std::optional<std::int64_t> partial_bytes(const Graph& graph, const Node& node, std::size_t operand, int dim) {
  const NodeView view(graph, node);
  const Rule* const rule = rule_of(node);
  if (rule == nullptr || !rule->partial_bytes) return std::nullopt;
  if (dim < 0 || dim >= view.rank(operand)) refuse_dim(view, operand, dim);
  return by_rule(*rule, &Rule::partial_bytes, view, operand, dim);
}

std::optional<Partial> partial(const Graph& graph, const Node& node, std::size_t operand, int dim) {
  const Rule* const rule = rule_of(node);
  if (rule == nullptr || !rule->partial) return std::nullopt;
  const NodeView view(graph, node);
  if (dim < 0 || dim >= view.rank(operand)) refuse_dim(view, operand, dim);
  if (view.rows(operand, dim) < 2) return std::nullopt;
  for (std::size_t i = 1; i < node.outputs.size(); ++i) {
    if (view.uses_output(i)) return std::nullopt;
  }
  std::optional<Partial> found = by_rule(*rule, &Rule::partial, view, operand, dim);
  if (found && (found->state.bytes() >= view.operand(operand).bytes() || found->state.shape.size() > kMaxDims)) {
    return std::nullopt;
  }
  return found;
}

void register_rule(const std::string& op, const Rule& rule) { user_rules().add(op, rule); }

SlicedCall call_by_rows(const NodeView& view, const NodeSplit& split, Region rows) {
  SlicedCall call;
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    const OperandSplit& operand = split.operands[i];
    Region part;
    if (operand.dim >= 0) part = needed(operand.map, rows, view.rows(i, operand.dim));
    call.operands.push_back({operand.tensor, operand.dim, part});
  }
  call.keep = {0, rows.size()};
  return call;
}

}  // namespace atl::infer
