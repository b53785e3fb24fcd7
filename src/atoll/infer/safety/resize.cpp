// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Resampling. Kernels compute the row to read from the factor, in floating point: so a factor must be moderate and
// match the sizes.
namespace atl::infer::safety {
namespace {

struct Resampling {
  std::size_t spatial;  // dimensions; batch and channels precede them
  bool smooth;          // it has align_corners before the factors
  double reads;         // rows along each dimension
};

std::int64_t rows_by(const CallView& view, std::int64_t rows, double factor) {
  constexpr double kMaxFactor = 1 << 16;
  view.require(factor >= 1 / kMaxFactor && factor <= kMaxFactor, "its factor must be from 2^-16 to 2^16");
  const double made = std::floor(static_cast<double>(rows) * factor);
  view.require(made >= 1 && made <= static_cast<double>(kMaxAdmittedRows), "it makes too few or too many rows");
  return static_cast<std::int64_t>(made);
}

// (input, output_size, [align_corners,] scale_factors): either sizes or factors.
Shape by_list(const CallView& view, const Resampling& kind, const Shape& rows) {
  const std::size_t place = kind.smooth ? 3 : 2;
  view.require_arguments(place + 1);
  view.require(view.is_null(1) != view.is_null(place), "it must have either sizes or factors");
  if (!view.is_null(1)) {
    Ints sizes = view.integers(1, 1, kMaxAdmittedRows);
    view.require(sizes.size() == kind.spatial, "it must have one size for each dimension");
    return sizes;
  }
  const Floats factors = view.floats(place);
  view.require(factors.size() == kind.spatial, "it must have one factor for each dimension");
  Shape made;
  for (std::size_t i = 0; i < kind.spatial; ++i) made.push_back(rows_by(view, rows[i], factors[i]));
  return made;
}

// (input, output_size, [align_corners,] a factor or null for each dimension)
Shape by_sizes(const CallView& view, const Resampling& kind, const Shape& rows) {
  const std::size_t place = kind.smooth ? 3 : 2;
  view.require_arguments(place + kind.spatial);
  Ints sizes = view.per_dim(1, kind.spatial, 1, kMaxAdmittedRows);
  for (std::size_t i = 0; i < kind.spatial; ++i) {
    if (view.is_null(place + i)) continue;
    view.require(rows_by(view, rows[i], view.real(place + i)) == sizes[i], "its factor does not match its sizes");
  }
  return sizes;
}

Made resize(const CallView& view, const Resampling& kind, bool list) {
  const Tensor& input = view.tensor(0, kFloats);
  view.require(input.shape.size() == kind.spatial + 2, "its input has the wrong number of dimensions");
  if (kind.smooth) static_cast<void>(view.boolean(2));
  const Shape rows(input.shape.begin() + 2, input.shape.end());
  Shape shape = list ? by_list(view, kind, rows) : by_sizes(view, kind, rows);
  shape.insert(shape.begin(), input.shape.begin(), input.shape.begin() + 2);
  Made made = with_copies(view, one(view, input.dtype, std::move(shape)));
  made.workspace_bytes += 2 * bytes_in(made.outputs.front());
  made.operations *= std::pow(kind.reads, static_cast<double>(kind.spatial));
  return made;
}

}  // namespace

void add_resize_validators(Operators& operators) {
  const auto add = [&](const std::string& name, Resampling kind) {
    const std::string op = "aten::" + name + std::to_string(kind.spatial) + "d";
    operators[op] = {[kind](const CallView& view) { return resize(view, kind, false); }};
    operators[op + ".vec"] = {[kind](const CallView& view) { return resize(view, kind, true); }};
  };
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    add("upsample_nearest", {spatial, false, 1});
    add("_upsample_nearest_exact", {spatial, false, 1});
  }
  add("upsample_linear", {1, true, 2});
  add("upsample_bilinear", {2, true, 2});
  add("upsample_trilinear", {3, true, 2});
  add("upsample_bicubic", {2, true, 4});
}

}  // namespace atl::infer::safety
