// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "atoll/infer/rules/rules.h"

// Resampling. Output row o reads the operand around s(o) = o P/Q, (o + 1/2) P/Q - 1/2 or, with corners aligned, o P/Q,
// where P/Q is the ratio of the sizes in lowest terms. The operator has no argument for the position of its slice in
// the whole, but s(o + Q) = s(o) + P: slices that begin at a multiple of P rows see the same fractions as the whole.
namespace atl::infer {
namespace {

enum class Mode { kNearest, kNearestExact, kLinear, kCubic };

struct ResizeKind {
  Mode mode;
  int spatial;  // dimensions; batch and channels precede them
};

// The places of an operator's arguments. The overload "vec" may have factors in place of sizes.
struct FactorPlaces {
  std::size_t factors;  // a list in "vec", otherwise one argument for each dimension
  bool vec;
};

struct Resize {
  std::int64_t inputs = 1;   // P
  std::int64_t outputs = 1;  // Q
  bool aligned = false;
};

bool is_smooth(ResizeKind kind) { return kind.mode == Mode::kLinear || kind.mode == Mode::kCubic; }

FactorPlaces places_of(const NodeView& view, ResizeKind kind) {
  return {is_smooth(kind) ? 3U : 2U, view.overload() == "vec"};
}

std::optional<double> factor_of(const NodeView& view, FactorPlaces places, int i) {
  if (!places.vec) {
    const std::size_t argument = places.factors + static_cast<std::size_t>(i);
    if (view.is_null(argument) || view.number(argument) <= 0) return std::nullopt;
    return view.number(argument);
  }
  if (view.is_null(places.factors)) return std::nullopt;
  const Floats factors = view.numbers(places.factors);
  if (static_cast<std::size_t>(i) >= factors.size()) return std::nullopt;
  return factors[static_cast<std::size_t>(i)];
}

// Sets P/Q from a factor; false for factors that would round when multiplied by a number of whole blocks.
bool ratio_of_factor(double factor, std::int64_t n, std::int64_t m, Resize& resize) {
  constexpr double kMax = 1 << 20;
  const double inverse = 1 / factor;
  if (factor >= 1 && factor <= kMax && factor == std::floor(factor)) {
    resize.outputs = static_cast<std::int64_t>(factor);
    return m == n * resize.outputs;
  }
  if (!(inverse > 1 && inverse <= kMax) || std::exp2(std::floor(std::log2(inverse))) != inverse) return false;
  resize.inputs = static_cast<std::int64_t>(inverse);
  return m == n / resize.inputs;
}

// PyTorch computes the position in float or double. Where rounding moves it over the edge of a row, a slice would read
// another row than the whole does.
bool rounds_alike(const Resize& resize, double scale, float single, Mode mode, std::int64_t m) {
  for (std::int64_t o = 0; o < m; ++o) {
    std::int64_t exact = o * resize.inputs / resize.outputs;
    double place = static_cast<double>(o);
    float single_place = static_cast<float>(o);
    if (mode == Mode::kNearestExact) {
      exact = (2 * o + 1) * resize.inputs / (2 * resize.outputs);
      place += 0.5;
      single_place += 0.5F;
    }
    if (std::floor(place * scale) != static_cast<double>(exact)) return false;
    if (std::floor(single_place * single) != static_cast<float>(exact)) return false;
  }
  return true;
}

std::optional<Resize> read_resize(const NodeView& view, ResizeKind kind, int i) {
  constexpr std::int64_t kMaxRows = 1 << 16;
  const FactorPlaces places = places_of(view, kind);
  const std::int64_t n = view.rows(0, i + 2);
  const std::int64_t m = view.output_rows(i + 2);
  if (n < 1 || m < 1 || n > kMaxRows || m > kMaxRows) return std::nullopt;
  Resize resize;
  resize.aligned = is_smooth(kind) && view.boolean(2);
  const std::optional<double> factor = factor_of(view, places, i);
  double scale = static_cast<double>(n) / static_cast<double>(m);
  float single = static_cast<float>(n) / static_cast<float>(m);
  if (resize.aligned) {
    if (n < 2 || m < 2) return std::nullopt;
    const std::int64_t blocks = std::gcd(n - 1, m - 1);
    resize.inputs = (n - 1) / blocks;
    resize.outputs = (m - 1) / blocks;
  } else if (factor) {
    if (!ratio_of_factor(*factor, n, m, resize)) return std::nullopt;
    scale = 1 / *factor;
    single = static_cast<float>(scale);
  } else {
    const std::int64_t blocks = std::gcd(n, m);
    resize.inputs = n / blocks;
    resize.outputs = m / blocks;
  }
  if (!is_smooth(kind) && !rounds_alike(resize, scale, single, kind.mode, m)) return std::nullopt;
  return resize;
}

bool fits(const NodeView& view, ResizeKind kind) {
  return view.operands() == 1 && view.rank(0) == kind.spatial + 2 && view.output_rank() == view.rank(0);
}

std::optional<NodeSplit> split_resize(const NodeView& view, ResizeKind kind, int output_dim) {
  if (!fits(view, kind)) return std::nullopt;
  if (output_dim < 2) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const auto resize = read_resize(view, kind, output_dim - 2);
  if (!resize) return std::nullopt;
  // Linear resampling reads one row beside the block, cubic resampling two.
  std::int64_t beside = 0;
  if (kind.mode == Mode::kLinear && !resize->aligned) beside = 1;
  if (kind.mode == Mode::kCubic) beside = ceil_div(2, resize->inputs);
  return block_rows(view, output_dim,
                    maps::Blocks{resize->inputs, resize->outputs, beside, beside, resize->aligned ? 1 : 0});
}

SlicedCall slice_resize(const NodeView& view, ResizeKind kind, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto* blocks = std::get_if<maps::Blocks>(&split.operands[0].map);
  if (blocks == nullptr) return call;
  const Region read_rows = call.operands[0].rows;
  const std::int64_t begin = read_rows.begin / blocks->inputs * blocks->outputs;
  call.keep = {rows.begin - begin, rows.end - begin};
  const FactorPlaces places = places_of(view, kind);
  if (view.is_null(1) && blocks->overlap == 0) return call;  // the factor is kept
  Ints sizes(view.output_shape().begin() + 2, view.output_shape().end());
  sizes[static_cast<std::size_t>(output_dim - 2)] =
      (read_rows.size() - blocks->overlap) / blocks->inputs * blocks->outputs + blocks->overlap;
  call.changes.push_back({1, sizes});
  // With corners aligned only the sizes count, and "vec" takes either sizes or factors.
  if (view.is_null(1) && places.vec) call.changes.push_back({places.factors, std::monostate{}});
  return call;
}

Rule resize_rule(ResizeKind kind) {
  return {[=](const NodeView& view, int output_dim) { return split_resize(view, kind, output_dim); },
          [=](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            return slice_resize(view, kind, split, output_dim, rows);
          },
          {}};
}

}  // namespace

void add_resize_rules(Rules& rules) {
  for (int spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    rules["aten::upsample_nearest" + dims] = resize_rule({Mode::kNearest, spatial});
    rules["aten::_upsample_nearest_exact" + dims] = resize_rule({Mode::kNearestExact, spatial});
  }
  rules["aten::upsample_linear1d"] = resize_rule({Mode::kLinear, 1});
  rules["aten::upsample_bilinear2d"] = resize_rule({Mode::kLinear, 2});
  rules["aten::upsample_trilinear3d"] = resize_rule({Mode::kLinear, 3});
  rules["aten::upsample_bicubic2d"] = resize_rule({Mode::kCubic, 2});
}

}  // namespace atl::infer
