// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Resampling. Output row o reads the operand around s(o) = o P/Q, (o + 1/2) P/Q - 1/2 or, with corners aligned, o P/Q,
// where P/Q is the ratio of the sizes in lowest terms. The operator has no argument for the position of its slice in
// the whole, but s(o + Q) = s(o) + P: slices that begin at a multiple of P rows see the same fractions as the whole.
// Kernels compute the row to read from the factor, in floating point: so a factor must be moderate and match the sizes.
namespace atl::infer::operators {
namespace {

enum class Mode { kNearest, kNearestExact, kLinear, kCubic };

struct ResizeKind {
  Mode mode;
  std::size_t spatial;  // dimensions; batch and channels precede them
  bool is_list;         // the overload "vec", which has one list of factors, in place of sizes

  bool is_smooth() const { return mode == Mode::kLinear || mode == Mode::kCubic; }
  // The first argument with factors: smooth resampling has align_corners before them.
  std::size_t factors() const { return is_smooth() ? 3 : 2; }
};

struct Resize {
  ResizeKind kind;
  bool aligned = false;
  Ints made;  // rows by dimension
  std::vector<std::optional<double>> factors;
};

std::int64_t rows_by(const ArgumentReader& reader, std::int64_t rows, double factor) {
  constexpr double kMaxFactor = 1 << 16;
  reader.require(factor >= 1 / kMaxFactor && factor <= kMaxFactor, "its factor must be from 2^-16 to 2^16");
  const double made = std::floor(static_cast<double>(rows) * factor);
  reader.require(made >= 1 && made <= static_cast<double>(kMaxAdmittedRows), "it makes too few or too many rows");
  return static_cast<std::int64_t>(made);
}

// (input, output_size, [align_corners,] scale_factors): either sizes or factors.
void read_list(const ArgumentReader& reader, const Shape& rows, Resize& resize) {
  const std::size_t place = resize.kind.factors();
  reader.require_arguments(place + 1);
  reader.require(reader.is_null(1) != reader.is_null(place), "it must have either sizes or factors");
  if (!reader.is_null(1)) {
    resize.made = reader.integers(1, 1, kMaxAdmittedRows);
    reader.require(resize.made.size() == rows.size(), "it must have one size for each dimension");
    return;
  }
  const Floats factors = reader.floats(place);
  reader.require(factors.size() == rows.size(), "it must have one factor for each dimension");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    resize.made.push_back(rows_by(reader, rows[i], factors[i]));
    resize.factors[i] = factors[i];
  }
}

// (input, output_size, [align_corners,] a factor or null for each dimension)
void read_sizes(const ArgumentReader& reader, const Shape& rows, Resize& resize) {
  const std::size_t place = resize.kind.factors();
  reader.require_arguments(place + rows.size());
  resize.made = reader.per_dim(1, rows.size(), 1, kMaxAdmittedRows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (reader.is_null(place + i)) continue;
    const double factor = reader.real(place + i);
    reader.require(rows_by(reader, rows[i], factor) == resize.made[i], "its factor does not match its sizes");
    resize.factors[i] = factor;
  }
}

Resize read_resize(const ArgumentReader& reader, const ResizeKind& kind) {
  const Tensor& input = reader.tensor(0, kFloats);
  reader.require(input.shape.size() == kind.spatial + 2, "its input has the wrong number of dimensions");
  Resize resize{kind, kind.is_smooth() && reader.boolean(2), {}, std::vector<std::optional<double>>(kind.spatial)};
  const Shape rows(input.shape.begin() + 2, input.shape.end());
  if (kind.is_list) {
    read_list(reader, rows, resize);
  } else {
    read_sizes(reader, rows, resize);
  }
  return resize;
}

Made resize(const CallView& view, const Resize& call) {
  const Tensor& input = view.tensor(0);
  Shape shape(input.shape.begin(), input.shape.begin() + 2);
  shape.insert(shape.end(), call.made.begin(), call.made.end());
  Made made = with_copies(view, one(view, input.dtype, std::move(shape)));
  made.workspace_bytes += 2 * bytes_in(made.outputs.front());
  const double reads = call.kind.mode == Mode::kCubic ? 4 : call.kind.is_smooth() ? 2 : 1;  // rows in each dimension
  made.operations *= std::pow(reads, static_cast<double>(call.kind.spatial));
  return made;
}

// The ratio of the sizes.
struct Ratio {
  std::int64_t inputs = 1;   // P
  std::int64_t outputs = 1;  // Q
};

// None for factors that would round when multiplied by a number of whole blocks.
std::optional<Ratio> ratio_of_factor(double factor, std::int64_t n, std::int64_t m) {
  constexpr double kMax = 1 << 20;
  const double inverse = 1 / factor;
  Ratio ratio;
  if (factor >= 1 && factor <= kMax && factor == std::floor(factor)) {
    ratio.outputs = static_cast<std::int64_t>(factor);
    return m == n * ratio.outputs ? std::optional(ratio) : std::nullopt;
  }
  if (!(inverse > 1 && inverse <= kMax) || std::exp2(std::floor(std::log2(inverse))) != inverse) return std::nullopt;
  ratio.inputs = static_cast<std::int64_t>(inverse);
  return m == n / ratio.inputs ? std::optional(ratio) : std::nullopt;
}

// PyTorch computes the position in float or double. Where rounding moves it over the edge of a row, a slice would read
// another row than the whole does.
bool rounds_alike(const Ratio& ratio, double scale, float single, Mode mode, std::int64_t m) {
  for (std::int64_t o = 0; o < m; ++o) {
    std::int64_t exact = o * ratio.inputs / ratio.outputs;
    double place = static_cast<double>(o);
    float single_place = static_cast<float>(o);
    if (mode == Mode::kNearestExact) {
      exact = (2 * o + 1) * ratio.inputs / (2 * ratio.outputs);
      place += 0.5;
      single_place += 0.5F;
    }
    if (std::floor(place * scale) != static_cast<double>(exact)) return false;
    if (std::floor(single_place * single) != static_cast<float>(exact)) return false;
  }
  return true;
}

// From `n` rows to `m`; none where parts would differ from the whole.
std::optional<Ratio> ratio_of(const Resize& call, std::optional<double> factor, std::int64_t n, std::int64_t m) {
  constexpr std::int64_t kMaxRows = 1 << 16;
  if (n < 1 || m < 1 || n > kMaxRows || m > kMaxRows) return std::nullopt;
  if (call.aligned) {
    if (n < 2 || m < 2) return std::nullopt;
    const std::int64_t blocks = std::gcd(n - 1, m - 1);
    return Ratio{(n - 1) / blocks, (m - 1) / blocks};
  }
  double scale = static_cast<double>(n) / static_cast<double>(m);
  float single = static_cast<float>(n) / static_cast<float>(m);
  const std::int64_t blocks = std::gcd(n, m);
  std::optional<Ratio> ratio = Ratio{n / blocks, m / blocks};
  if (factor) {
    ratio = ratio_of_factor(*factor, n, m);
    scale = 1 / *factor;
    single = static_cast<float>(scale);
  }
  if (ratio && !call.kind.is_smooth() && !rounds_alike(*ratio, scale, single, call.kind.mode, m)) return std::nullopt;
  return ratio;
}

std::optional<NodeSplit> split_resize(const NodeView& view, const Resize& call, int output_dim) {
  if (view.operands() != 1 || view.output_rank() != view.rank(0)) return std::nullopt;
  if (output_dim < 2) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const auto i = static_cast<std::size_t>(output_dim - 2);
  if (view.output_rows(output_dim) != call.made[i]) return std::nullopt;
  const auto ratio = ratio_of(call, call.factors[i], view.rows(0, output_dim), call.made[i]);
  if (!ratio) return std::nullopt;
  // Linear resampling reads one row beside the block, cubic resampling two.
  std::int64_t beside = 0;
  if (call.kind.mode == Mode::kLinear && !call.aligned) beside = 1;
  if (call.kind.mode == Mode::kCubic) beside = ceil_div(2, ratio->inputs);
  return block_rows(view, output_dim,
                    maps::Blocks{ratio->inputs, ratio->outputs, beside, beside, call.aligned ? 1 : 0});
}

SlicedCall slice_resize(const NodeView& view, const Resize& of, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto* blocks = std::get_if<maps::Blocks>(&split.operands[0].map);
  if (blocks == nullptr) return call;
  const Region read_rows = call.operands[0].rows;
  const std::int64_t begin = read_rows.begin / blocks->inputs * blocks->outputs;
  call.keep = {rows.begin - begin, rows.end - begin};
  if (view.is_null(1) && blocks->overlap == 0) return call;  // the factor is kept
  Ints sizes(view.output_shape().begin() + 2, view.output_shape().end());
  sizes[static_cast<std::size_t>(output_dim - 2)] =
      (read_rows.size() - blocks->overlap) / blocks->inputs * blocks->outputs + blocks->overlap;
  call.changes.push_back({1, sizes});
  // With corners aligned only the sizes count, and "vec" takes either sizes or factors.
  if (view.is_null(1)) call.changes.push_back({of.kind.factors(), std::monostate{}});
  return call;
}

Operator resize_operator(ResizeKind kind) {
  const auto read = [kind](const ArgumentReader& reader) { return read_resize(reader, kind); };
  return {reading(read, resize), {reading(read, split_resize), reading(read, slice_resize)}};
}

}  // namespace

void add_resize(Table& table) {
  const auto add = [&](const std::string& name, Mode mode, std::size_t spatial) {
    const std::string op = "aten::" + name + std::to_string(spatial) + "d";
    table[op] = resize_operator({mode, spatial, false});
    table[op + ".vec"] = resize_operator({mode, spatial, true});
  };
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    add("upsample_nearest", Mode::kNearest, spatial);
    add("_upsample_nearest_exact", Mode::kNearestExact, spatial);
  }
  add("upsample_linear", Mode::kLinear, 1);
  add("upsample_bilinear", Mode::kLinear, 2);
  add("upsample_trilinear", Mode::kLinear, 3);
  add("upsample_bicubic", Mode::kCubic, 2);
}

}  // namespace atl::infer::operators
