// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/infer/operators/states.h"

// Reductions and running sums. Over dimensions other than the split one they are as local as their operand; over the
// split one, each part reduces its own rows, and the results are combined.
namespace atl::infer::operators {
namespace {

enum class ReductionResult { kSame, kSum, kMean, kIndex, kTruth };

// (self[, dtype]) or (self, dim, keepdim[, dtype]), if nothing else is said.
struct Reduction {
  ReductionResult result = ReductionResult::kSame;
  Dtypes takes = kAny;
  bool has_dtype = false;
  bool over_all = false;             // the overload without these two arguments:
  std::size_t dims = 1;              // the dimensions
  std::size_t keepdim = 2;           // whether reduced dimensions stay, with one row
  bool is_one = false;               // the dimension is one integer
  bool null_is_all = true;           // no dimensions mean all of them; otherwise they are refused
  bool empty_is_all = true;          // so does an empty list
  bool is_unbiased = false;          // the correction of a variance is a boolean
  std::int64_t values = 1;           // values of a part's state for each result
  std::optional<Reduced> kind = {};  // how parts are combined, if they can be
};

struct ReducedDims {
  std::vector<bool> are_reduced;
  bool keeps = false;
};

ReducedDims read_dims(const ArgumentReader& reader, const Reduction& of) {
  const std::size_t rank = reader.tensor(0).shape.size();
  ReducedDims dims{std::vector<bool>(rank, true)};
  if (of.over_all) return dims;
  const bool is_all = reader.is_null(of.dims) && of.null_is_all;
  if (of.is_one && !is_all) static_cast<void>(reader.dim(of.dims, rank));
  dims.keeps = reader.boolean(of.keepdim);
  if (is_all) return dims;
  reader.require(!reader.is_null(of.dims), "it must name a dimension");
  const std::vector<int> named = reader.dims(of.dims, rank);
  reader.require(!named.empty() || of.empty_is_all, "it must name a dimension");
  if (named.empty()) return dims;
  dims.are_reduced.assign(rank, false);
  for (const int dim : named) dims.are_reduced[static_cast<std::size_t>(dim)] = true;
  return dims;
}

Dtype reduced_dtype(const CallView& view, ReductionResult result, std::optional<Dtype> wanted) {
  const Dtype dtype = view.tensor(0).dtype;
  switch (result) {
    case ReductionResult::kSame: return dtype;
    case ReductionResult::kSum: return wanted.value_or(is_floating(dtype) ? dtype : Dtype::kInt64);
    case ReductionResult::kMean:
      view.require(is_floating(wanted.value_or(dtype)), "it cannot take the mean of integers");
      return wanted.value_or(dtype);
    case ReductionResult::kIndex: return Dtype::kInt64;
    case ReductionResult::kTruth: return dtype == Dtype::kUint8 ? Dtype::kUint8 : Dtype::kBool;
  }
  return dtype;
}

Made reduce(const CallView& view, const Reduction& of, Dtype dtype) {
  const Tensor& self = view.tensor(0);
  const ReducedDims dims = read_dims(view, of);
  Shape shape;
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    if (!dims.are_reduced[i]) shape.push_back(self.shape[i]);
    if (dims.are_reduced[i] && dims.keeps) shape.push_back(1);
  }
  Made made = with_copies(view, one(view, dtype, std::move(shape)));
  made.workspace_bytes += count_of(self.shape) * 8;  // in the type of the sum
  made.operations = kMove * count_of(self.shape);
  return made;
}

Made reduction(const CallView& view, const Reduction& of) {
  const std::size_t arguments = of.over_all ? 1 : 3;
  view.require_arguments(arguments + (of.has_dtype ? 1 : 0));
  static_cast<void>(view.tensor(0, of.takes));
  const std::optional<Dtype> wanted = of.has_dtype ? view.try_dtype(arguments) : std::nullopt;
  return reduce(view, of, reduced_dtype(view, of.result, wanted));
}

// The value and its index.
Made extreme(const CallView& view, const Reduction& of) {
  Made made = reduction(view, of);
  made.outputs.push_back({Dtype::kInt64, made.outputs.front().shape});
  return made;
}

// (self, dim, correction, keepdim) or (self, dim, unbiased, keepdim)
double read_correction(const ArgumentReader& reader, const Reduction& of) {
  if (of.is_unbiased) return reader.boolean(2) ? 1 : 0;
  return reader.is_null(2) ? 1 : reader.real(2);
}

Made spread(const CallView& view, const Reduction& of) {
  view.require_arguments(4);
  const Tensor& self = view.tensor(0, kFloats);
  static_cast<void>(read_correction(view, of));
  Made made = reduce(view, of, self.dtype);
  if (!of.is_unbiased) made.operations *= 2;
  return made;
}

Made spread_with_mean(const CallView& view, const Reduction& of) {
  Made made = spread(view, of);
  const Tensor mean = made.outputs.front();
  made.outputs.push_back(mean);
  return made;
}

// (self, ord, dim, keepdim, dtype)
Made norm(const CallView& view, const Reduction& of) {
  view.require_arguments(5);
  const Tensor& self = view.tensor(0, kFloats);
  view.require_fits(1, Dtype::kFloat64);
  view.require_null(4);
  return reduce(view, of, self.dtype);
}

std::optional<NodeSplit> split_reduction(const NodeView& view, const Reduction& of, int output_dim) {
  if (view.operands() != 1) return std::nullopt;
  const ReducedDims dims = read_dims(view, of);
  int next = 0;  // dimension of the output
  for (std::size_t i = 0; i < dims.are_reduced.size(); ++i) {
    if (dims.are_reduced[i] && !dims.keeps) continue;
    if (next++ != output_dim) continue;
    if (dims.are_reduced[i]) return std::nullopt;
    return same_rows(view, Locality::kElement, static_cast<int>(i), output_dim);
  }
  return std::nullopt;
}

std::optional<std::int64_t> reduction_bytes(const NodeView& view, const Reduction& of, std::size_t operand, int dim) {
  if (operand != 0 || !read_dims(view, of).are_reduced[static_cast<std::size_t>(dim)]) return std::nullopt;
  return view.output().elements() * of.values * sum_bytes(view.output().dtype);
}

std::optional<Partial> partial_reduction(const NodeView& view, const Reduction& of, std::size_t operand, int dim) {
  if (!of.kind || operand != 0 || view.operands() != 1) return std::nullopt;
  const ReducedDims dims = read_dims(view, of);
  if (!dims.are_reduced[static_cast<std::size_t>(dim)]) return std::nullopt;
  Ints listed;
  for (std::size_t i = 0; i < dims.are_reduced.size(); ++i) {
    if (dims.are_reduced[i]) listed.push_back(static_cast<std::int64_t>(i));
  }
  if (of.kind == Reduced::kNorm && !(view.real(1) == 2 && view.is_null(4))) return std::nullopt;
  const bool is_spread = of.kind == Reduced::kVariance || of.kind == Reduced::kDeviation;
  return reduction_states(view, dim, *of.kind, listed, is_spread ? read_correction(view, of) : 0);
}

Operator reduction_operator(const Reduction& of, Made (*made_by)(const CallView&, const Reduction&)) {
  return {
      [=](const CallView& view) { return made_by(view, of); },
      {[=](const NodeView& view, int output_dim) { return split_reduction(view, of, output_dim); },
       {},
       [=](const NodeView& view, std::size_t operand, int dim) { return reduction_bytes(view, of, operand, dim); },
       [=](const NodeView& view, std::size_t operand, int dim) { return partial_reduction(view, of, operand, dim); }}};
}

// (self, dim, dtype); returns the dimension.
int read_running(const ArgumentReader& reader) { return reader.dim(1, reader.tensor(0).shape.size()); }

Made running(const CallView& view) {
  view.require_arguments(3);
  static_cast<void>(read_running(view));
  const Dtype dtype = reduced_dtype(view, ReductionResult::kSum, view.try_dtype(2));
  view.require(dtype != Dtype::kBool, "it cannot add in booleans");
  return with_copies(view, one(view, dtype, view.tensor(0).shape));
}

// A row needs the rows before it, for which their sum is enough.
std::optional<std::int64_t> running_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (operand != 0 || read_running(view) != dim) return std::nullopt;
  const std::int64_t length = std::max<std::int64_t>(1, view.rows(0, dim));
  return view.output().elements() / length * sum_bytes(view.output().dtype);
}

void add_spreads(Table& table) {
  const Reduction spread_of{.takes = kFloats, .keepdim = 3, .values = 2};
  for (const auto& [name, kind] :
       {std::pair("aten::var", Reduced::kVariance), std::pair("aten::std", Reduced::kDeviation)}) {
    Reduction of = spread_of;
    of.kind = kind;
    table[name + std::string(".correction")] = reduction_operator(of, spread);
    of.is_unbiased = true;
    table[name + std::string(".dim")] = reduction_operator(of, spread);
  }
  table["aten::var_mean.correction"] = reduction_operator(spread_of, spread_with_mean);
}

}  // namespace

void add_reductions(Table& table) {
  using Result = ReductionResult;
  const auto add = [&](const std::string& name, const Reduction& of) {
    table["aten::" + name] = reduction_operator(of, reduction);
  };
  add("sum", {.result = Result::kSum, .has_dtype = true, .over_all = true, .kind = Reduced::kSum});
  add("sum.dim_IntList", {.result = Result::kSum, .has_dtype = true, .kind = Reduced::kSum});
  add("mean", {.result = Result::kMean, .has_dtype = true, .over_all = true, .kind = Reduced::kMean});
  add("mean.dim", {.result = Result::kMean, .has_dtype = true, .kind = Reduced::kMean});
  add("prod", {.result = Result::kSum, .has_dtype = true, .over_all = true});
  add("prod.dim_int", {.result = Result::kSum, .has_dtype = true, .is_one = true, .null_is_all = false});
  add("amax", {.null_is_all = false, .kind = Reduced::kMax});
  add("amin", {.null_is_all = false, .kind = Reduced::kMin});
  add("max", {.over_all = true, .kind = Reduced::kMax});
  add("min", {.over_all = true, .kind = Reduced::kMin});
  for (const char* name : {"any", "all"}) {
    const std::string op = name;
    add(op, {.result = Result::kTruth, .over_all = true});
    add(op + ".dim", {.result = Result::kTruth, .is_one = true, .null_is_all = false});
    add(op + ".dims", {.result = Result::kTruth, .empty_is_all = false});
  }
  // A value with its position; the maximum with the sum relative to it.
  for (const char* name : {"aten::max.dim", "aten::min.dim"}) {
    table[name] = reduction_operator({.is_one = true, .null_is_all = false, .values = 2}, extreme);
  }
  for (const char* name : {"argmax", "argmin"}) {
    add(name, {.result = Result::kIndex, .takes = kNumbers, .is_one = true, .values = 2});
  }
  add("logsumexp",
      {.takes = kFloats, .null_is_all = false, .empty_is_all = false, .values = 2, .kind = Reduced::kLogSumExp});
  add_spreads(table);
  table["aten::linalg_vector_norm"] =
      reduction_operator({.dims = 2, .keepdim = 3, .empty_is_all = false, .kind = Reduced::kNorm}, norm);
  for (const char* name : {"aten::cumsum", "aten::cumprod"}) {
    table[name] = {running, unless_along(read_running)};
    table[name].rule.partial_bytes = running_bytes;
  }
}

}  // namespace atl::infer::operators
