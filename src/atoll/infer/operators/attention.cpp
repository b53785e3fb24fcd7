// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Attention. Its kernels take the number of keys from one operand and read as many values from another, and divide by
// sizes. So all sizes are compared, and none may be 0.
namespace atl::infer::operators {
namespace {

std::int64_t from_last(const Tensor& tensor, std::size_t place) { return tensor.shape[tensor.shape.size() - place]; }

// (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
struct Attention {
  int rank = 0;
  bool causal = false;
  bool has_mask = false;
  Shape made;
};

// Checks the dimensions before the matrices: batch and heads.
void require_heads(const ArgumentReader& reader, const Tensor& query, const Tensor& key, const Tensor& value,
                   bool shared) {
  const std::size_t rank = query.shape.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    reader.require(key.shape[i] == value.shape[i], "its keys and values differ in number");
    const bool heads = shared && i + 3 == rank;
    const bool fit = heads ? key.shape[i] > 0 && query.shape[i] % key.shape[i] == 0 : query.shape[i] == key.shape[i];
    reader.require(fit, "its keys and queries differ in batches or heads");
  }
}

bool read_mask(const ArgumentReader& reader, const Tensor& query, const Tensor& key) {
  const Tensor* mask = reader.try_tensor(3);
  if (mask == nullptr) return false;
  Shape scores = query.shape;
  scores.back() = from_last(key, 2);
  reader.require(mask->dtype == Dtype::kBool || mask->dtype == query.dtype,
                 "its mask must be boolean or of its queries' type");
  reader.require(mask->shape.size() >= 2 && ArgumentReader::spreads(mask->shape, scores),
                 "its mask does not fit its queries and keys");
  reader.require(!reader.boolean(5), "it must not have a mask and be causal");
  return true;
}

Attention read_attention(const ArgumentReader& reader) {
  reader.require_arguments(8);
  const Tensor& query = reader.tensor(0, kFloats);
  const Tensor& key = reader.tensor(1);
  const Tensor& value = reader.tensor(2);
  const std::size_t rank = query.shape.size();
  reader.require(key.dtype == query.dtype && value.dtype == query.dtype, "its operands differ in type");
  reader.require(rank >= 2 && rank <= 5 && key.shape.size() == rank && value.shape.size() == rank,
                 "its operands have an invalid number of dimensions");
  const bool shared = reader.boolean(7);
  reader.require(!shared || rank == 4, "heads can share keys only with four dimensions");
  require_heads(reader, query, key, value, shared);
  reader.require(from_last(key, 1) == from_last(query, 1), "its keys and queries differ in width");
  reader.require(from_last(key, 2) == from_last(value, 2), "its keys and values differ in number");
  Attention call{static_cast<int>(rank), false, read_mask(reader, query, key), query.shape};
  reader.require(reader.real(4) == 0, "it draws random numbers");
  call.causal = reader.boolean(5);
  if (!reader.is_null(6)) static_cast<void>(reader.real(6));
  call.made.back() = from_last(value, 1);
  return call;
}

Made attention(const CallView& view, const Attention& call) {
  const Tensor& query = view.tensor(0);
  const Tensor& key = view.tensor(1);
  Made made = with_copies(view, one(view, query.dtype, call.made));
  const double keys = static_cast<double>(from_last(key, 2));
  const double queries = count_of(query.shape) / static_cast<double>(from_last(query, 1));
  const double widths = static_cast<double>(from_last(query, 1)) + static_cast<double>(from_last(view.tensor(2), 1));
  // Scores, the mask in their type, and weights, in float32 if the type is narrower; keys and values of each head.
  const double bytes = query.dtype == Dtype::kFloat64 ? 8 : 4;
  const double heads = queries / static_cast<double>(from_last(query, 2));
  made.workspace_bytes += (3 * queries * keys + heads * keys * widths) * bytes;
  made.operations = 2 * queries * keys * (widths + kMove);
  return made;
}

// A query row needs all keys and values, a causal one those up to its own place.
std::optional<NodeSplit> split_attention(const NodeView& view, const Attention& call, int output_dim) {
  if (view.output_shape() != call.made || output_dim == call.rank - 1) return std::nullopt;
  NodeSplit split = whole(view, Locality::kRow);
  if (!follow_same(split, view, 0, output_dim, output_dim)) return std::nullopt;
  if (call.has_mask && !follow_broadcast(split, view, 3, output_dim)) return std::nullopt;
  if (output_dim == call.rank - 2) {
    if (call.causal) {
      follow(split, 1, output_dim, maps::Prefix{});
      follow(split, 2, output_dim, maps::Prefix{});
    }
    return split;
  }
  // Batch and heads; heads that share keys are not split.
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!follow_or_whole(split, view, i, output_dim, output_dim)) return std::nullopt;
  }
  return split;
}

// The operator counts query rows from its first one, so padding moves a part's rows to their place.
SlicedCall slice_attention(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (std::holds_alternative<maps::Prefix>(split.operands[1].map) && rows.begin > 0) {
    call.pads.push_back({0, output_dim, rows.begin, 0, 0});
    call.keep = rows;
  }
  return call;
}

// With keys split: the maximum and the sum of each query's weights, and its part of the output.
std::optional<std::int64_t> attention_bytes(const NodeView& view, const Attention& call, std::size_t operand, int dim) {
  if ((operand != 1 && operand != 2) || dim != call.rank - 2) return std::nullopt;
  const Tensor& output = view.output();
  const std::int64_t width = std::max<std::int64_t>(1, output.shape.back());
  return (output.elements() + 2 * (output.elements() / width)) * sum_bytes(output.dtype);
}

}  // namespace

void add_attention(Table& table) {
  table["aten::scaled_dot_product_attention"] = {
      reading(read_attention, attention),
      {reading(read_attention, split_attention), slice_attention, reading(read_attention, attention_bytes)}};
}

}  // namespace atl::infer::operators
