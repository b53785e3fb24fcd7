// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Reductions, running sums and softmax.
namespace atl::infer::safety {
namespace {

enum class ReductionResult { kSame, kSum, kMean, kIndex, kTruth };

// The dimensions that the argument names; null: all.
struct Reduced {
  std::vector<bool> dims;
  bool keeps = false;
};

Reduced over_all(const CallView& view) { return {std::vector<bool>(view.tensor(0).shape.size(), true), false}; }

// `empty_is_all`: an empty list means all dimensions; otherwise it is ambiguous and refused.
Reduced over(const CallView& view, std::size_t dims, std::size_t keepdim, bool empty_is_all) {
  const std::size_t rank = view.tensor(0).shape.size();
  Reduced reduced{std::vector<bool>(rank, true), view.boolean(keepdim)};
  if (view.is_null(dims)) return reduced;
  const std::vector<int> named = view.dims(dims, rank);
  if (named.empty()) {
    view.require(empty_is_all, "it must name a dimension");
    return reduced;
  }
  reduced.dims.assign(rank, false);
  for (const int dim : named) reduced.dims[static_cast<std::size_t>(dim)] = true;
  return reduced;
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

Made reduce(const CallView& view, const Reduced& reduced, Dtype dtype) {
  const Tensor& self = view.tensor(0);
  Shape shape;
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    if (!reduced.dims[i]) shape.push_back(self.shape[i]);
    if (reduced.dims[i] && reduced.keeps) shape.push_back(1);
  }
  Made made = with_copies(view, one(view, dtype, std::move(shape)));
  made.workspace_bytes += count_of(self.shape) * 8;  // in the type of the sum
  made.operations = kMove * count_of(self.shape);
  return made;
}

// (self, dim, keepdim[, dtype])
Made by_dims(const CallView& view, ReductionResult result, Dtypes takes, bool has_dtype, bool empty_is_all) {
  view.require_arguments(has_dtype ? 4 : 3);
  view.require(result != ReductionResult::kSame || !view.is_null(1), "it must name a dimension");
  static_cast<void>(view.tensor(0, takes));
  const std::optional<Dtype> wanted = has_dtype ? view.try_dtype(3) : std::nullopt;
  return reduce(view, over(view, 1, 2, empty_is_all), reduced_dtype(view, result, wanted));
}

// (self[, dtype])
Made of_all(const CallView& view, ReductionResult result, Dtypes takes, bool has_dtype) {
  view.require_arguments(has_dtype ? 2 : 1);
  static_cast<void>(view.tensor(0, takes));
  const std::optional<Dtype> wanted = has_dtype ? view.try_dtype(1) : std::nullopt;
  return reduce(view, over_all(view), reduced_dtype(view, result, wanted));
}

// The overloads whose dimension is one integer, never null.
Made by_dim(const CallView& view, ReductionResult result, Dtypes takes, bool has_dtype) {
  static_cast<void>(view.dim(1, view.tensor(0).shape.size()));
  return by_dims(view, result, takes, has_dtype, false);
}

// (self, dim, keepdim): the value and its index.
Made extreme(const CallView& view) {
  Made made = by_dim(view, ReductionResult::kSame, kAny, false);
  made.outputs.push_back({Dtype::kInt64, made.outputs.front().shape});
  return made;
}

// (self, dim, keepdim): null or one integer.
Made place(const CallView& view) {
  if (!view.is_null(1)) static_cast<void>(view.dim(1, view.tensor(0).shape.size()));
  return by_dims(view, ReductionResult::kIndex, kNumbers, false, false);
}

// (self, dim, correction, keepdim)
Made spread(const CallView& view, bool with_mean) {
  view.require_arguments(4);
  const Tensor& self = view.tensor(0, kFloats);
  if (!view.is_null(2)) static_cast<void>(view.real(2));
  Made made = reduce(view, over(view, 1, 3, true), self.dtype);
  made.operations *= 2;
  const Tensor mean = made.outputs.front();
  if (with_mean) made.outputs.push_back(mean);
  return made;
}

// (self, dim, unbiased, keepdim)
Made spread_unbiased(const CallView& view) {
  view.require_arguments(4);
  static_cast<void>(view.boolean(2));
  return reduce(view, over(view, 1, 3, true), view.tensor(0, kFloats).dtype);
}

// (self, ord, dim, keepdim, dtype)
Made norm(const CallView& view) {
  view.require_arguments(5);
  const Tensor& self = view.tensor(0, kFloats);
  view.require_fits(1, Dtype::kFloat64);
  view.require_null(4);
  return reduce(view, over(view, 2, 3, false), self.dtype);
}

// (self, dim, dtype)
Made running(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  static_cast<void>(view.dim(1, self.shape.size()));
  const Dtype dtype = reduced_dtype(view, ReductionResult::kSum, view.try_dtype(2));
  view.require(dtype != Dtype::kBool, "it cannot add in booleans");
  return with_copies(view, one(view, dtype, self.shape));
}

// (self, dim, dtype)
Made softmax(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  static_cast<void>(view.dim(1, self.shape.size()));
  const Dtype dtype = view.try_dtype(2).value_or(self.dtype);
  view.require(is_floating(dtype), "its result must be floating");
  Made made = with_copies(view, one(view, dtype, self.shape));
  made.workspace_bytes += bytes_in(made.outputs.front());
  made.operations *= 3;
  return made;
}

// (self, dim, half_to_float)
Made plain_softmax(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0, kFloats);
  static_cast<void>(view.dim(1, self.shape.size()));
  view.require(!view.boolean(2), "it must not convert halves, which not every device supports");
  return with_copies(view, one(view, self.dtype, self.shape));
}

}  // namespace

void add_reduction_validators(Operators& operators) {
  const auto add = [&](const std::string& name, auto validate) { operators["aten::" + name] = {validate}; };
  const auto dims = [](ReductionResult result, Dtypes takes, bool has_dtype, bool empty_is_all) {
    return [=](const CallView& view) { return by_dims(view, result, takes, has_dtype, empty_is_all); };
  };
  const auto dim = [](ReductionResult result, Dtypes takes, bool has_dtype) {
    return [=](const CallView& view) { return by_dim(view, result, takes, has_dtype); };
  };
  const auto all = [](ReductionResult result, Dtypes takes, bool has_dtype) {
    return [=](const CallView& view) { return of_all(view, result, takes, has_dtype); };
  };
  add("sum", all(ReductionResult::kSum, kAny, true));
  add("sum.dim_IntList", dims(ReductionResult::kSum, kAny, true, true));
  add("mean", all(ReductionResult::kMean, kAny, true));
  add("mean.dim", dims(ReductionResult::kMean, kAny, true, true));
  add("prod", all(ReductionResult::kSum, kAny, true));
  add("prod.dim_int", dim(ReductionResult::kSum, kAny, true));
  for (const char* name : {"amax", "amin"}) add(name, dims(ReductionResult::kSame, kAny, false, true));
  for (const char* name : {"max", "min"}) add(name, all(ReductionResult::kSame, kAny, false));
  for (const char* name : {"max.dim", "min.dim"}) add(name, extreme);
  for (const char* name : {"argmax", "argmin"}) add(name, place);
  for (const char* name : {"any", "all"}) {
    const std::string op = name;
    add(op, all(ReductionResult::kTruth, kAny, false));
    add(op + ".dim", dim(ReductionResult::kTruth, kAny, false));
    add(op + ".dims", dims(ReductionResult::kTruth, kAny, false, false));
  }
  for (const char* name : {"var", "std"}) {
    add(std::string(name) + ".correction", [](const CallView& view) { return spread(view, false); });
    add(std::string(name) + ".dim", spread_unbiased);
  }
  add("var_mean.correction", [](const CallView& view) { return spread(view, true); });
  add("logsumexp", dims(ReductionResult::kSame, kFloats, false, false));
  add("linalg_vector_norm", norm);
  for (const char* name : {"cumsum", "cumprod"}) add(name, running);
  for (const char* name : {"softmax.int", "log_softmax.int", "_safe_softmax"}) add(name, softmax);
  for (const char* name : {"_softmax", "_log_softmax"}) add(name, plain_softmax);
}

}  // namespace atl::infer::safety
