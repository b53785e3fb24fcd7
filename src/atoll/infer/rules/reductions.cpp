// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/rules/rules.h"
#include "atoll/infer/rules/states.h"

// Reductions and running sums. Over dimensions other than the split one they are as local as their operand; over the
// split one, each part reduces its own rows, and the results are combined.
namespace atl::infer {
namespace {

struct Reduction {
  std::size_t dims = 1;              // the argument; null or an empty list: all dimensions
  std::size_t keepdim = 2;           // whether reduced dimensions stay, with one row
  std::int64_t values = 1;           // values of a part's state for each result
  bool over_all = false;             // the overload without these arguments
  std::optional<Reduced> kind = {};  // how parts are combined, if they can be
};

std::vector<bool> reduced_dims(const NodeView& view, const Reduction& reduction) {
  const int rank = view.rank(0);
  std::vector<int> dims;
  if (!reduction.over_all && !view.is_null(reduction.dims)) dims = view.dims(reduction.dims, rank);
  std::vector<bool> reduced(static_cast<std::size_t>(rank), dims.empty());
  for (const int dim : dims) reduced[static_cast<std::size_t>(dim)] = true;
  return reduced;
}

std::optional<NodeSplit> split_reduction(const NodeView& view, const Reduction& reduction, int output_dim) {
  if (view.operands() != 1) return std::nullopt;
  const std::vector<bool> reduced = reduced_dims(view, reduction);
  const bool keeps = !reduction.over_all && view.boolean(reduction.keepdim);
  int next = 0;  // dimension of the output
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    if (reduced[i] && !keeps) continue;
    if (next++ != output_dim) continue;
    if (reduced[i]) return std::nullopt;
    return same_rows(view, Locality::kElement, static_cast<int>(i), output_dim);
  }
  return std::nullopt;
}

std::optional<std::int64_t> reduction_bytes(const NodeView& view, const Reduction& reduction, std::size_t operand,
                                            int dim) {
  if (operand != 0 || !reduced_dims(view, reduction)[static_cast<std::size_t>(dim)]) return std::nullopt;
  return view.output().elements() * reduction.values * sum_bytes(view.output().dtype);
}

// (self, dim, unbiased, keepdim) or (self, dim, correction, keepdim)
double correction_of(const NodeView& view) {
  if (view.overload() == "dim") return view.boolean(2) ? 1 : 0;
  return view.is_null(2) ? 1 : view.number(2);
}

std::optional<Partial> partial_reduction(const NodeView& view, const Reduction& reduction, std::size_t operand,
                                         int dim) {
  if (!reduction.kind || operand != 0 || view.operands() != 1) return std::nullopt;
  const std::vector<bool> reduced = reduced_dims(view, reduction);
  if (!reduced[static_cast<std::size_t>(dim)]) return std::nullopt;
  Ints dims;
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    if (reduced[i]) dims.push_back(static_cast<std::int64_t>(i));
  }
  // (self, ord, dim, keepdim, dtype)
  if (reduction.kind == Reduced::kNorm && !(view.number(1) == 2 && view.is_null(4))) return std::nullopt;
  const bool is_spread = reduction.kind == Reduced::kVariance || reduction.kind == Reduced::kDeviation;
  return reduction_states(view, dim, *reduction.kind, dims, is_spread ? correction_of(view) : 0);
}

Rule reduction_rule(Reduction reduction) {
  return {[=](const NodeView& view, int output_dim) { return split_reduction(view, reduction, output_dim); },
          {},
          [=](const NodeView& view, std::size_t operand, int dim) {
            return reduction_bytes(view, reduction, operand, dim);
          },
          [=](const NodeView& view, std::size_t operand, int dim) {
            return partial_reduction(view, reduction, operand, dim);
          }};
}

// (self, dim, ...): a row needs the rows before it, for which their sum is enough.
std::optional<NodeSplit> running(const NodeView& view, int output_dim) {
  if (view.dim(1, view.output_rank()) == output_dim) return std::nullopt;
  return same_rows(view, Locality::kElement, output_dim, output_dim);
}

std::optional<std::int64_t> running_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (operand != 0 || view.dim(1, view.rank(0)) != dim) return std::nullopt;
  const std::int64_t length = std::max<std::int64_t>(1, view.rows(0, dim));
  return view.output().elements() / length * sum_bytes(view.output().dtype);
}

}  // namespace

void add_reduction_rules(Rules& rules) {
  const auto add = [&](const char* name, Reduction reduction) {
    rules["aten::" + std::string(name)] = reduction_rule(reduction);
  };
  add("mean", {.over_all = true, .kind = Reduced::kMean});
  add("sum", {.over_all = true, .kind = Reduced::kSum});
  add("max", {.over_all = true, .kind = Reduced::kMax});
  add("min", {.over_all = true, .kind = Reduced::kMin});
  for (const char* name : {"prod", "any", "all"}) add(name, {.over_all = true});
  add("mean.dim", {.kind = Reduced::kMean});
  add("sum.dim_IntList", {.kind = Reduced::kSum});
  add("amax", {.kind = Reduced::kMax});
  add("amin", {.kind = Reduced::kMin});
  for (const char* name : {"prod.dim_int", "any.dim", "any.dims", "all.dim", "all.dims"}) add(name, {});
  // A value with its position; the maximum with the sum relative to it.
  for (const char* name : {"argmax", "argmin", "max.dim", "min.dim"}) add(name, {.values = 2});
  add("logsumexp", {.values = 2, .kind = Reduced::kLogSumExp});
  // A mean with squared deviations; the count is known.
  for (const char* name : {"var.dim", "var.correction"}) {
    add(name, {.keepdim = 3, .values = 2, .kind = Reduced::kVariance});
  }
  for (const char* name : {"std.dim", "std.correction"}) {
    add(name, {.keepdim = 3, .values = 2, .kind = Reduced::kDeviation});
  }
  add("var_mean.correction", {.keepdim = 3, .values = 2});
  add("linalg_vector_norm", {.dims = 2, .keepdim = 3, .kind = Reduced::kNorm});
  const Rule sums{running, {}, running_bytes};
  for (const char* name : {"aten::cumsum", "aten::cumprod"}) rules[name] = sums;
}

}  // namespace atl::infer
