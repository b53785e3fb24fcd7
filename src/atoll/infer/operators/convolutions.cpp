// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Convolutions. In parts, padding is added explicitly at true borders, and the call itself does not pad along the split
// dimension. A small input with much padding is a memory bomb if each window is written out as a column, so these
// columns count as memory.
namespace atl::infer::operators {
namespace {

// The places of a convolution's arguments after input, weight and bias. The defaults are those of aten::conv1d.
struct ConvolutionPlaces {
  std::size_t stride = 3;
  std::size_t padding = 4;
  std::size_t dilation = 5;
  std::size_t groups = 6;
  std::size_t output_padding = 0;  // 0: the operator has none
  bool transposed = false;
  bool batched = false;  // an input without a batch is refused
  bool named = false;    // the padding is a string
};

struct Convolution {
  ConvolutionPlaces places;
  int spatial = 0;           // dimensions
  int first = 0;             // the first of them; the channel dimension precedes it
  std::int64_t inside = 0;   // channels
  std::int64_t outside = 0;  // channels
  std::int64_t groups = 1;
  Shape rows;
  Shape made;  // rows of the output
  Shape kernel;
  Ints stride;
  Ints dilation;
  Ints low;  // padding by dimension
  Ints high;
  Ints output_padding;
  bool same = false;  // the padding is given as a string

  std::int64_t span(int i) const { return at(dilation, i) * (at(kernel, i) - 1); }
};

void read_channels(const ArgumentReader& reader, Convolution& c) {
  const Tensor& input = reader.tensor(0);
  const Tensor& weight = reader.tensor(1);
  c.inside = at(input.shape, c.first - 1);
  c.groups = reader.integer(c.places.groups, 1, kMaxAdmittedRows);
  const std::int64_t here = weight.shape[c.places.transposed ? 0 : 1];
  const std::int64_t there = weight.shape[c.places.transposed ? 1 : 0];
  if (c.places.transposed) {
    reader.require(here == c.inside && here % c.groups == 0, "its weight does not fit its input's channels");
    reader.require(there <= kMaxAdmittedRows / c.groups, "it makes too many channels");
    c.outside = there * c.groups;
  } else {
    reader.require(c.inside % c.groups == 0 && c.inside / c.groups == here,
                   "its weight does not fit its input's channels");
    reader.require(there % c.groups == 0, "its groups do not divide its channels");
    c.outside = there;
  }
  require_weight(reader, 2, input, {c.outside});
}

void read_padding(const ArgumentReader& reader, Convolution& c) {
  const auto dims = static_cast<std::size_t>(c.spatial);
  const std::string name = c.places.named ? reader.text(c.places.padding) : "";
  reader.require(!c.places.named || name == "same" || name == "valid", "its padding must be same or valid");
  c.same = name == "same";
  c.low = c.places.named ? Ints(dims, 0) : reader.per_dim(c.places.padding, dims, 0, kMaxStep);
  c.high = c.low;
  c.output_padding = c.places.transposed ? reader.per_dim(c.places.output_padding, dims, 0, kMaxStep) : Ints(dims, 0);
  for (int i = 0; i < c.spatial && c.same; ++i) {
    reader.require(at(c.stride, i) == 1, "padding to the same size requires a stride of 1");
    c.low[static_cast<std::size_t>(i)] = c.span(i) / 2;
    c.high[static_cast<std::size_t>(i)] = c.span(i) - c.span(i) / 2;
  }
}

std::int64_t rows_made(const ArgumentReader& reader, const Convolution& c, int i) {
  if (!c.places.transposed) {
    return window_rows(reader, at(c.rows, i), at(c.low, i) + at(c.high, i), at(c.kernel, i), at(c.stride, i),
                       at(c.dilation, i));
  }
  const std::int64_t more = at(c.output_padding, i);
  reader.require(more < at(c.stride, i) || more < at(c.dilation, i),
                 "its output padding must be below its stride or its dilation");
  const std::int64_t made = (at(c.rows, i) - 1) * at(c.stride, i) - 2 * at(c.low, i) + c.span(i) + more + 1;
  reader.require(made >= 1, "it makes no rows");
  return made;
}

Convolution read_convolution(const ArgumentReader& reader, const ConvolutionPlaces& places, std::size_t spatial) {
  const Tensor& input = reader.tensor(0, kFloats);
  const Tensor& weight = reader.tensor(1);
  Convolution c;
  c.places = places;
  c.spatial = static_cast<int>(spatial);
  reader.require(weight.dtype == input.dtype, "its weight must have its input's type");
  reader.require(weight.shape.size() == spatial + 2, "its weight has the wrong number of dimensions");
  const bool has_batch = input.shape.size() == spatial + 2;
  reader.require(has_batch || (!places.batched && input.shape.size() == spatial + 1),
                 "its input has the wrong number of dimensions");
  c.first = has_batch ? 2 : 1;
  read_channels(reader, c);
  c.rows.assign(input.shape.begin() + c.first, input.shape.end());
  c.kernel.assign(weight.shape.begin() + 2, weight.shape.end());
  for (const std::int64_t size : c.kernel) reader.require(size >= 1 && size <= kMaxStep, "its kernel is too large");
  c.stride = reader.per_dim(places.stride, spatial, 1, kMaxStep);
  c.dilation = reader.per_dim(places.dilation, spatial, 1, kMaxStep);
  read_padding(reader, c);
  for (int i = 0; i < c.spatial; ++i) c.made.push_back(rows_made(reader, c, i));
  return c;
}

// oneDNN needs copies in its own formats. PyTorch's own kernels write columns: always, except for float32 where the
// input is large and the convolution is not transposed.
double convolution_workspace(const CallView& view, const Convolution& c, const Tensor& output) {
  double bytes = bytes_in(output);
  for (const Tensor& operand : view.types()) bytes += bytes_in(operand);
  constexpr double kSmall = 20480;
  const Tensor& input = view.tensor(0);
  const bool columns = input.dtype != Dtype::kFloat32 || count_of(input.shape) <= kSmall || c.places.transposed;
  if (!columns) return bytes;
  const double channels = static_cast<double>(c.places.transposed ? c.outside : c.inside);
  const double places_made =
      c.places.transposed ? count_of(c.rows) : count_of(output.shape) / static_cast<double>(c.outside);
  return bytes + channels * count_of(c.kernel) * places_made * static_cast<double>(bytes_of(input.dtype));
}

Made convolution(const CallView& view, const Convolution& c) {
  const Tensor& input = view.tensor(0);
  for (int i = 0; i < c.spatial && c.places.transposed; ++i) {
    view.require(at(c.low, i) <= c.span(i), "its padding is larger than its kernel");
  }
  Shape shape(input.shape.begin(), input.shape.begin() + c.first - 1);
  shape.push_back(c.outside);
  shape.insert(shape.end(), c.made.begin(), c.made.end());
  Made made = one(view, input.dtype, std::move(shape));
  const Tensor& output = made.outputs.front();
  made.workspace_bytes = convolution_workspace(view, c, output);
  const double windows = c.places.transposed ? count_of(input.shape) * static_cast<double>(c.outside)
                                             : count_of(output.shape) * static_cast<double>(c.inside);
  made.operations = 2 * windows * count_of(c.kernel) / static_cast<double>(c.groups) + count_of(output.shape);
  return made;
}

bool is_declared(const NodeView& view, const Convolution& c) {
  if (view.output_rank() != view.rank(0)) return false;
  return std::equal(c.made.begin(), c.made.end(), view.output_shape().begin() + c.first);
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

std::optional<NodeSplit> split_convolution(const NodeView& view, const Convolution& c, int output_dim) {
  if (!is_declared(view, c)) return std::nullopt;
  if (output_dim == c.first - 1) return split_channels(view, c, output_dim);
  if (output_dim < c.first) return same_rows(view, Locality::kRow, output_dim, output_dim);
  return block_rows(view, output_dim, map_of(c, output_dim - c.first));
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
  constexpr std::int64_t kMinPlaces = 16;  // positions of the output: some libraries compute them as matrix products
  if (c.places.transposed) return {};
  const std::int64_t count = view.output_rows(output_dim);
  if (output_dim < c.first) return filling(rows, count, 1, kMinPlaces);
  const std::int64_t others = elements_of_row(view, output_dim, c.first, view.output_rank(), kMinPlaces);
  return filling(rows, count, others, kMinPlaces);
}

SlicedCall slice_convolution(const NodeView& view, const Convolution& c, const NodeSplit& split, int output_dim,
                             Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (output_dim < c.first - 1) return call;
  const Filling more = filling_of(view, c, output_dim, rows);
  if (output_dim < c.first) return filled_call(view, split, rows, more);
  const int i = output_dim - c.first;
  const std::int64_t count = view.rows(0, output_dim);
  const Region reach = reached(split.operands[0].map, rows, count);
  const Cut parts = cut(reach, count);
  const std::int64_t low = parts.low + more.low * at(c.stride, i);
  const std::int64_t high = parts.high + more.high * at(c.stride, i);
  if (low + high > 0) call.pads.push_back({0, output_dim, low, high, 0});
  call.keep = {more.low, more.low + rows.size()};
  if (c.same) {  // a string holds for all dimensions, so the others are padded here, too
    for (int k = 0; k < c.spatial; ++k) {
      if (k != i && at(c.low, k) + at(c.high, k) > 0) {
        call.pads.push_back({0, c.first + k, at(c.low, k), at(c.high, k), 0});
      }
    }
    call.changes.push_back({c.places.padding, Text{"valid"}});
  } else if (!c.places.named) {
    Ints padding = c.low;
    padding[static_cast<std::size_t>(i)] = 0;
    call.changes.push_back({c.places.padding, padding});
  }
  if (c.places.transposed) cut_transposed(c, i, reach.begin, rows, call);
  return call;
}

// Sums over the channels of the input.
std::optional<std::int64_t> convolution_bytes(const NodeView& view, const Convolution& c, std::size_t operand,
                                              int dim) {
  if (!is_declared(view, c) || operand != 0 || dim != c.first - 1 || c.groups != 1) return std::nullopt;
  return view.output().elements() * sum_bytes(view.output().dtype);
}

template <typename Read>
Operator convolution_operator(std::size_t arguments, Read read) {
  return {[=](const CallView& view) {
            view.require_arguments(arguments);
            return convolution(view, read(view));
          },
          {reading(read, split_convolution), reading(read, slice_convolution), reading(read, convolution_bytes)}};
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Convolution read_any_convolution(const ArgumentReader& reader) {
  const std::size_t rank = reader.tensor(1).shape.size();
  reader.require(rank >= 3 && rank <= 5, "its weight must have 1 to 3 spatial dimensions");
  const bool transposed = reader.boolean(6);
  if (!transposed) static_cast<void>(reader.per_dim(7, rank - 2, 0, 0));
  return read_convolution(reader, {3, 4, 5, 8, 7, transposed, true}, rank - 2);
}

// (self, kernel_size, dilation, padding, stride): windows written out as columns.
Made im2col(const CallView& view) {
  view.require_arguments(5);
  const Tensor& input = view.tensor(0, kFloats);
  const std::size_t rank = input.shape.size();
  view.require(rank == 3 || rank == 4, "its input must have 3 or 4 dimensions");
  const Ints kernel = view.per_dim(1, 2, 1, kMaxStep);
  const Ints dilation = view.per_dim(2, 2, 1, kMaxStep);
  const Ints padding = view.per_dim(3, 2, 0, kMaxStep);
  const Ints stride = view.per_dim(4, 2, 1, kMaxStep);
  std::int64_t windows = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t rows =
        window_rows(view, input.shape[rank - 2 + i], 2 * padding[i], kernel[i], stride[i], dilation[i]);
    view.require(rows <= kMaxAdmittedRows / windows, "it makes too many windows");
    windows *= rows;
  }
  Shape shape(input.shape.begin(), input.shape.end() - 3);
  view.require(input.shape[rank - 3] <= kMaxAdmittedRows / (kernel[0] * kernel[1]), "it makes too many rows");
  shape.push_back(input.shape[rank - 3] * kernel[0] * kernel[1]);
  shape.push_back(windows);
  return with_copies(view, one(view, input.dtype, std::move(shape)));
}

}  // namespace

void add_convolutions(Table& table) {
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    const auto add = [&](const std::string& name, const ConvolutionPlaces& places, std::size_t arguments) {
      table["aten::" + name] = convolution_operator(
          arguments, [=](const ArgumentReader& reader) { return read_convolution(reader, places, spatial); });
    };
    add("conv" + dims, {}, 7);
    add("conv" + dims + ".padding", {.named = true}, 7);
    add("conv_transpose" + dims + (spatial > 1 ? ".input" : ""), {3, 4, 7, 6, 5, true}, 8);
  }
  table["aten::convolution"] = convolution_operator(9, read_any_convolution);
  table["aten::im2col"] = {im2col};
}

}  // namespace atl::infer::operators
