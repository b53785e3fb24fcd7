// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/convolution_arguments.h"
#include "atoll/infer/rules/rules.h"

// Convolutions. Padding is added explicitly at true borders, and the call itself does not pad along the split
// dimension.
namespace atl::infer {
namespace {

// Positions of the output: some libraries compute them as matrix products.
constexpr std::int64_t kMinPlaces = 16;

struct Convolution {
  ConvolutionArguments places;
  int spatial = 0;  // dimensions
  int first = 0;    // the first of them; the channel dimension precedes it
  Ints low;         // padding by dimension
  Ints high;
  Ints stride;
  Ints dilation;
  Ints kernel;
  Ints output_padding;
  std::int64_t groups = 1;
  bool same = false;  // the padding is given as a string
};

bool read_padding(const NodeView& view, Convolution& convolution) {
  const auto dims = static_cast<std::size_t>(convolution.spatial);
  if (view.overload() != "padding") {
    convolution.low = convolution.high = per_dim(view, convolution.places.padding, dims);
    return !convolution.low.empty();
  }
  convolution.same = view.text(convolution.places.padding) == "same";
  for (int i = 0; i < convolution.spatial; ++i) {
    const std::int64_t both = convolution.same ? at(convolution.dilation, i) * (at(convolution.kernel, i) - 1) : 0;
    convolution.low.push_back(both / 2);
    convolution.high.push_back(both - both / 2);
  }
  return true;
}

std::int64_t rows_made(const Convolution& c, int i, std::int64_t rows) {
  const std::int64_t span = at(c.dilation, i) * (at(c.kernel, i) - 1);
  if (c.places.transposed) {
    return (rows - 1) * at(c.stride, i) - 2 * at(c.low, i) + span + at(c.output_padding, i) + 1;
  }
  return floor_div(rows + at(c.low, i) + at(c.high, i) - span - 1, at(c.stride, i)) + 1;
}

// None for sizes that do not fit together.
std::optional<Convolution> read_convolution(const NodeView& view, ConvolutionArguments places) {
  constexpr std::int64_t kMaxKernel = 1'000'000;
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 36;
  Convolution c;
  c.places = places;
  if (view.operands() < 2 || !view.operand_at(0) || !view.operand_at(1)) return std::nullopt;
  c.spatial = view.rank(1) - 2;
  c.first = view.rank(0) - c.spatial;
  if (c.spatial < 1 || c.first < 1 || c.first > 2 || view.output_rank() != view.rank(0)) return std::nullopt;
  const auto dims = static_cast<std::size_t>(c.spatial);
  c.kernel.assign(view.shape(1).begin() + 2, view.shape(1).end());
  c.stride = per_dim(view, places.stride, dims);
  c.dilation = per_dim(view, places.dilation, dims);
  c.output_padding = places.transposed ? per_dim(view, places.output_padding, dims) : Ints(dims, 0);
  c.groups = view.integer(places.groups);
  if (c.stride.empty() || c.dilation.empty() || c.output_padding.empty()) return std::nullopt;
  for (int i = 0; i < c.spatial; ++i) {
    if (at(c.kernel, i) < 1 || at(c.kernel, i) > kMaxKernel || at(c.stride, i) < 1 || at(c.dilation, i) < 1) {
      return std::nullopt;
    }
  }
  if (!read_padding(view, c)) return std::nullopt;
  for (int i = 0; i < c.spatial; ++i) {
    const std::int64_t rows = view.rows(0, c.first + i);
    if (rows < 1 || rows > kMaxRows || view.output_rows(c.first + i) != rows_made(c, i, rows)) return std::nullopt;
  }
  return c;
}

RowMap map_of(const Convolution& c, int i) {
  if (c.places.transposed) return maps::Transposed{at(c.kernel, i), at(c.stride, i), at(c.low, i), at(c.dilation, i)};
  return maps::Window{at(c.kernel, i), at(c.stride, i), at(c.low, i), at(c.dilation, i)};
}

// Each channel of the output has its own weights: input whole.
std::optional<NodeSplit> split_channels(const NodeView& view, const Convolution& c, int output_dim) {
  NodeSplit split = whole(view, Locality::kRow);
  if (c.groups != 1 || !follow_same(split, view, 1, c.places.transposed ? 1 : 0, output_dim)) return std::nullopt;
  if (view.operands() > 2 && !follow_same(split, view, 2, 0, output_dim)) return std::nullopt;
  return split;
}

std::optional<NodeSplit> split_convolution(const NodeView& view, ConvolutionArguments places, int output_dim) {
  const auto convolution = read_convolution(view, places);
  if (!convolution) return std::nullopt;
  if (output_dim == convolution->first - 1) return split_channels(view, *convolution, output_dim);
  if (output_dim < convolution->first) return same_rows(view, Locality::kRow, output_dim, output_dim);
  return block_rows(view, output_dim, map_of(*convolution, output_dim - convolution->first));
}

// The rows of the input begin at `origin`, padding included; the call's output begins at the output row origin * stride
// - padding.
void cut_transposed(const Convolution& c, int i, std::int64_t origin, Region rows, SlicedCall& call) {
  const std::int64_t begin = origin * at(c.stride, i) - at(c.low, i);
  call.keep = {rows.begin - begin, rows.end - begin};
  Ints output_padding = c.output_padding;
  output_padding[static_cast<std::size_t>(i)] = 0;
  call.changes.push_back({c.places.output_padding, output_padding});
}

Filling filling_of(const NodeView& view, const Convolution& c, int output_dim, Region rows) {
  if (c.places.transposed) return {};
  const std::int64_t count = view.output_rows(output_dim);
  if (output_dim < c.first) return filling(rows, count, 1, kMinPlaces);
  const std::int64_t others = elements_of_row(view, output_dim, c.first, view.output_rank(), kMinPlaces);
  return filling(rows, count, others, kMinPlaces);
}

SlicedCall slice_convolution(const NodeView& view, ConvolutionArguments places, const NodeSplit& split, int output_dim,
                             Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto c = read_convolution(view, places);
  if (!c || output_dim < c->first - 1) return call;
  const Filling more = filling_of(view, *c, output_dim, rows);
  if (output_dim < c->first) return filled_call(view, split, rows, more);
  const int i = output_dim - c->first;
  const std::int64_t count = view.rows(0, output_dim);
  const Region reach = reached(split.operands[0].map, rows, count);
  const Cut parts = cut(reach, count);
  const std::int64_t low = parts.low + more.low * at(c->stride, i);
  const std::int64_t high = parts.high + more.high * at(c->stride, i);
  if (low + high > 0) call.pads.push_back({0, output_dim, low, high, 0});
  call.keep = {more.low, more.low + rows.size()};
  if (c->same) {  // a string holds for all dimensions, so the others are padded here, too
    for (int k = 0; k < c->spatial; ++k) {
      if (k != i && at(c->low, k) + at(c->high, k) > 0) {
        call.pads.push_back({0, c->first + k, at(c->low, k), at(c->high, k), 0});
      }
    }
    call.changes.push_back({places.padding, Text{"valid"}});
  } else if (view.overload() != "padding") {
    Ints padding = c->low;
    padding[static_cast<std::size_t>(i)] = 0;
    call.changes.push_back({places.padding, padding});
  }
  if (places.transposed) cut_transposed(*c, i, reach.begin, rows, call);
  return call;
}

// Sums over the channels of the input.
std::optional<std::int64_t> convolution_bytes(const NodeView& view, ConvolutionArguments places, std::size_t operand,
                                              int dim) {
  const auto c = read_convolution(view, places);
  if (!c || operand != 0 || dim != c->first - 1 || c->groups != 1) return std::nullopt;
  return view.output().elements() * sum_bytes(view.output().dtype);
}

template <typename PlacesOf>
Rule convolution_rule(PlacesOf places_of) {
  return {[=](const NodeView& view, int output_dim) { return split_convolution(view, places_of(view), output_dim); },
          [=](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            return slice_convolution(view, places_of(view), split, output_dim, rows);
          },
          [=](const NodeView& view, std::size_t operand, int dim) {
            return convolution_bytes(view, places_of(view), operand, dim);
          }};
}

}  // namespace

void add_convolution_rules(Rules& rules) {
  const Rule plain = convolution_rule([](const NodeView&) { return ConvolutionArguments{}; });
  const Rule transposed = convolution_rule([](const NodeView&) { return kTransposedArguments; });
  for (const char* name : {"aten::conv1d", "aten::conv2d", "aten::conv3d"}) rules[name] = plain;
  for (const char* name : {"aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"}) {
    rules[name] = transposed;
  }
  rules["aten::convolution"] = convolution_rule([](const NodeView& view) { return either_arguments(view.boolean(6)); });
}

}  // namespace atl::infer
