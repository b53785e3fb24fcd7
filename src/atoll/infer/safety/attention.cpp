// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "atoll/infer/safety/validators.h"

// Attention. Its kernels take the number of keys from one operand and read as many values from another, and divide by
// sizes. So all sizes are compared, and none may be 0.
namespace atl::infer::safety {
namespace {

std::int64_t from_last(const Tensor& tensor, std::size_t place) { return tensor.shape[tensor.shape.size() - place]; }

// Checks the dimensions before the matrices: batch and heads.
void require_heads(const CallView& view, const Tensor& query, const Tensor& key, const Tensor& value, bool shared) {
  const std::size_t rank = query.shape.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    view.require(key.shape[i] == value.shape[i], "its keys and values differ in number");
    const bool heads = shared && i + 3 == rank;
    const bool fit = heads ? query.shape[i] % key.shape[i] == 0 : query.shape[i] == key.shape[i];
    view.require(fit, "its keys and queries differ in batches or heads");
  }
}

void require_mask(const CallView& view, const Tensor& query, const Tensor& key) {
  const Tensor* mask = view.try_tensor(3);
  if (mask == nullptr) return;
  Shape scores = query.shape;
  scores.back() = from_last(key, 2);
  view.require(mask->dtype == Dtype::kBool || mask->dtype == query.dtype,
               "its mask must be boolean or of its queries' type");
  view.require(mask->shape.size() >= 2 && CallView::spreads(mask->shape, scores),
               "its mask does not fit its queries and keys");
  view.require(!view.boolean(5), "it must not have a mask and be causal");
}

// (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
Made attention(const CallView& view) {
  view.require_arguments(8);
  const Tensor& query = view.tensor(0, kFloats);
  const Tensor& key = view.tensor(1);
  const Tensor& value = view.tensor(2);
  const std::size_t rank = query.shape.size();
  view.require(key.dtype == query.dtype && value.dtype == query.dtype, "its operands differ in type");
  view.require(rank >= 2 && rank <= 5 && key.shape.size() == rank && value.shape.size() == rank,
               "its operands have an invalid number of dimensions");
  const bool shared = view.boolean(7);
  view.require(!shared || rank == 4, "heads can share keys only with four dimensions");
  require_heads(view, query, key, value, shared);
  view.require(from_last(key, 1) == from_last(query, 1), "its keys and queries differ in width");
  view.require(from_last(key, 2) == from_last(value, 2), "its keys and values differ in number");
  require_mask(view, query, key);
  view.require(view.real(4) == 0, "it draws random numbers");
  static_cast<void>(view.boolean(5));
  if (!view.is_null(6)) static_cast<void>(view.real(6));
  Shape shape = query.shape;
  shape.back() = from_last(value, 1);
  Made made = with_copies(view, one(view, query.dtype, std::move(shape)));
  const double keys = static_cast<double>(from_last(key, 2));
  const double queries = count_of(query.shape) / static_cast<double>(from_last(query, 1));
  const double widths = static_cast<double>(from_last(query, 1)) + static_cast<double>(from_last(value, 1));
  // Scores, the mask in their type, and weights, in float32 if the type is narrower; keys and values of each head.
  const double bytes = query.dtype == Dtype::kFloat64 ? 8 : 4;
  const double heads = queries / static_cast<double>(from_last(query, 2));
  made.workspace_bytes += (3 * queries * keys + heads * keys * widths) * bytes;
  made.operations = 2 * queries * keys * (widths + kMove);
  return made;
}

}  // namespace

void add_attention_validators(Operators& operators) { operators["aten::scaled_dot_product_attention"] = {attention}; }

}  // namespace atl::infer::safety
