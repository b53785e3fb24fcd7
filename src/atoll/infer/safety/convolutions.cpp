// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "atoll/infer/convolution_arguments.h"
#include "atoll/infer/safety/validators.h"

// Convolutions. A small input with much padding is a memory bomb if each window is written out as a column, so these
// columns count as memory.
namespace atl::infer::safety {
namespace {

struct ConvolutionSizes {
  Shape batch;  // the dimensions before the channels: one or none
  std::size_t spatial = 0;
  std::int64_t inside = 0;   // channels
  std::int64_t outside = 0;  // channels
  std::int64_t groups = 1;
  Shape rows;
  Shape kernel;
  Ints stride;
  Ints dilation;
};

ConvolutionSizes read_sizes(const CallView& view, const ConvolutionArguments& places, std::size_t spatial) {
  const Tensor& input = view.tensor(0, kFloats);
  const Tensor& weight = view.tensor(1);
  ConvolutionSizes c;
  c.spatial = spatial;
  view.require(weight.dtype == input.dtype, "its weight must have its input's type");
  view.require(weight.shape.size() == spatial + 2, "its weight has the wrong number of dimensions");
  const bool has_batch = input.shape.size() == spatial + 2;
  view.require(has_batch || (!places.batched && input.shape.size() == spatial + 1),
               "its input has the wrong number of dimensions");
  if (has_batch) c.batch = {input.shape[0]};
  const std::size_t first = c.batch.size() + 1;
  c.inside = input.shape[first - 1];
  c.groups = view.integer(places.groups, 1, kMaxAdmittedRows);
  const std::int64_t here = weight.shape[places.transposed ? 0 : 1];
  const std::int64_t there = weight.shape[places.transposed ? 1 : 0];
  if (places.transposed) {
    view.require(here == c.inside && here % c.groups == 0, "its weight does not fit its input's channels");
    view.require(there <= kMaxAdmittedRows / c.groups, "it makes too many channels");
    c.outside = there * c.groups;
  } else {
    view.require(c.inside % c.groups == 0 && c.inside / c.groups == here,
                 "its weight does not fit its input's channels");
    view.require(there % c.groups == 0, "its groups do not divide its channels");
    c.outside = there;
  }
  require_weight(view, 2, input, {c.outside});
  c.rows.assign(input.shape.begin() + static_cast<std::ptrdiff_t>(first), input.shape.end());
  c.kernel.assign(weight.shape.begin() + 2, weight.shape.end());
  for (const std::int64_t size : c.kernel) view.require(size <= kMaxStep, "its kernel is too large");
  c.stride = view.per_dim(places.stride, spatial, 1, kMaxStep);
  c.dilation = view.per_dim(places.dilation, spatial, 1, kMaxStep);
  return c;
}

Shape plain_rows(const CallView& view, const ConvolutionArguments& places, const ConvolutionSizes& c, bool named) {
  Shape rows;
  const std::string name = named ? view.text(places.padding) : "";
  view.require(!named || name == "same" || name == "valid", "its padding must be same or valid");
  Ints padding(c.spatial, 0);
  if (!named) padding = view.per_dim(places.padding, c.spatial, 0, kMaxStep);
  for (std::size_t i = 0; i < c.spatial; ++i) {
    const std::int64_t span = c.dilation[i] * (c.kernel[i] - 1);
    view.require(name != "same" || c.stride[i] == 1, "padding to the same size requires a stride of 1");
    const std::int64_t both = name == "same" ? span : 2 * padding[i];
    rows.push_back(window_rows(view, c.rows[i], both, c.kernel[i], c.stride[i], c.dilation[i]));
  }
  return rows;
}

Shape transposed_rows(const CallView& view, const ConvolutionArguments& places, const ConvolutionSizes& c) {
  const Ints padding = view.per_dim(places.padding, c.spatial, 0, kMaxStep);
  const Ints more = view.per_dim(places.output_padding, c.spatial, 0, kMaxStep);
  Shape rows;
  for (std::size_t i = 0; i < c.spatial; ++i) {
    const std::int64_t span = c.dilation[i] * (c.kernel[i] - 1);
    view.require(padding[i] <= span, "its padding is larger than its kernel");
    view.require(more[i] < c.stride[i] || more[i] < c.dilation[i],
                 "its output padding must be below its stride or its dilation");
    rows.push_back((c.rows[i] - 1) * c.stride[i] - 2 * padding[i] + span + more[i] + 1);
    view.require(rows.back() >= 1, "it makes no rows");
  }
  return rows;
}

// oneDNN needs copies in its own formats. PyTorch's own kernels write columns: always, except for float32 where the
// input is large and the convolution is not transposed.
double workspace(const CallView& view, const ConvolutionSizes& c, const ConvolutionArguments& places,
                 const Tensor& output) {
  double bytes = bytes_in(output);
  for (const Tensor& operand : view.operands()) bytes += bytes_in(operand);
  constexpr double kSmall = 20480;
  const Tensor& input = view.tensor(0);
  const bool columns = input.dtype != Dtype::kFloat32 || count_of(input.shape) <= kSmall || places.transposed;
  if (!columns) return bytes;
  const double channels = static_cast<double>(places.transposed ? c.outside : c.inside);
  const double places_made =
      places.transposed ? count_of(c.rows) : count_of(output.shape) / static_cast<double>(c.outside);
  return bytes + channels * count_of(c.kernel) * places_made * static_cast<double>(bytes_of(input.dtype));
}

Made convolution(const CallView& view, const ConvolutionArguments& places, std::size_t spatial, bool named) {
  const ConvolutionSizes c = read_sizes(view, places, spatial);
  const Shape rows = places.transposed ? transposed_rows(view, places, c) : plain_rows(view, places, c, named);
  Shape shape = c.batch;
  shape.push_back(c.outside);
  shape.insert(shape.end(), rows.begin(), rows.end());
  Made made = one(view, view.tensor(0).dtype, std::move(shape));
  const Tensor& output = made.outputs.front();
  made.workspace_bytes = workspace(view, c, places, output);
  const double windows = places.transposed ? count_of(view.tensor(0).shape) * static_cast<double>(c.outside)
                                           : count_of(output.shape) * static_cast<double>(c.inside);
  made.operations = 2 * windows * count_of(c.kernel) / static_cast<double>(c.groups) + count_of(output.shape);
  return made;
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Made any_convolution(const CallView& view) {
  view.require_arguments(9);
  const std::size_t rank = view.tensor(1).shape.size();
  view.require(rank >= 3 && rank <= 5, "its weight must have 1 to 3 spatial dimensions");
  const ConvolutionArguments places = either_arguments(view.boolean(6));
  if (!places.transposed) static_cast<void>(view.per_dim(7, rank - 2, 0, 0));
  return convolution(view, places, rank - 2, false);
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

void add_convolution_validators(Operators& operators) {
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    const auto add = [&](const std::string& name, const ConvolutionArguments& places, std::size_t count, bool named) {
      operators["aten::" + name] = {[=](const CallView& view) {
        view.require_arguments(count);
        return convolution(view, places, spatial, named);
      }};
    };
    add("conv" + dims, {}, 7, false);
    add("conv" + dims + ".padding", {}, 7, true);
    add("conv_transpose" + dims + (spatial > 1 ? ".input" : ""), kTransposedArguments, 8, false);
  }
  operators["aten::convolution"] = {any_convolution};
  operators["aten::im2col"] = {im2col};
}

}  // namespace atl::infer::safety
