// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/rules/rules.h"
#include "atoll/infer/rules/states.h"

// Matrix products, attention, embedding: rows of the left operand with all of the right one.
namespace atl::infer {
namespace {

// Filled up to this many rows, a float32 product has the same bits as those rows of the whole on the processors tried,
// except for a few rows at its end.
constexpr std::int64_t kMinRows = 8;
constexpr std::int64_t kMinColumns = 16;

std::int64_t output_sums(const NodeView& view) { return view.output().elements() * sum_bytes(view.output().dtype); }

// (input, weight, bias). The last dimension has one row of the weight each.
std::optional<NodeSplit> linear(const NodeView& view, int output_dim) {
  if (view.operands() < 2 || view.rank(1) != 2) return std::nullopt;
  if (output_dim != view.output_rank() - 1) return same_rows(view, Locality::kRow, output_dim, output_dim);
  NodeSplit split = whole(view, Locality::kRow);
  if (!follow_same(split, view, 1, 0, output_dim)) return std::nullopt;
  if (view.operands() > 2 && !follow_same(split, view, 2, 0, output_dim)) return std::nullopt;
  return split;
}

SlicedCall slice_linear(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  const std::int64_t count = view.output_rows(output_dim);
  const int last = view.output_rank() - 1;
  if (output_dim == last) return filled_call(view, split, rows, filling(rows, count, 1, kMinColumns));
  const std::int64_t others = elements_of_row(view, output_dim, 0, last, kMinRows);
  return filled_call(view, split, rows, filling(rows, count, others, kMinRows));
}

std::optional<std::int64_t> linear_bytes(const NodeView& view, std::size_t operand, int dim) {
  const bool contracted = (operand == 0 && dim == view.rank(0) - 1) || (operand == 1 && dim == 1);
  return contracted ? std::optional(output_sums(view)) : std::nullopt;
}

// The weight's columns go with the input's.
std::optional<Partial> linear_sums(const NodeView& view, std::size_t operand, int dim) {
  if (operand != 0) return std::nullopt;
  return linear_states(view, dim);
}

// A dimension before the matrices, counted from the last of them: broadcast.
bool follow_batch(NodeSplit& split, const NodeView& view, std::size_t operand, int from_last, int output_dim) {
  const int dim = view.rank(operand) - 3 - from_last;
  if (dim < 0 || (view.rows(operand, dim) == 1 && view.output_rows(output_dim) != 1)) return true;
  return follow_same(split, view, operand, dim, output_dim);
}

// Operands `left` and `right` are [..., n, k] and [..., k, p], or vectors.
bool follow_product(NodeSplit& split, const NodeView& view, std::size_t left, std::size_t right, int output_dim) {
  const bool has_rows = view.rank(left) > 1;
  const bool has_columns = view.rank(right) > 1;
  const int last = view.output_rank() - 1;
  if (has_columns && output_dim == last) return follow_same(split, view, right, view.rank(right) - 1, output_dim);
  if (has_rows && output_dim == last - (has_columns ? 1 : 0)) {
    return follow_same(split, view, left, view.rank(left) - 2, output_dim);
  }
  const int from_last = last - (has_rows ? 1 : 0) - (has_columns ? 1 : 0) - output_dim;
  return follow_batch(split, view, left, from_last, output_dim) &&
         follow_batch(split, view, right, from_last, output_dim);
}

// matmul, mm and bmm have (self, other); addmm and baddbmm have a summand before them.
std::optional<NodeSplit> split_product(const NodeView& view, int output_dim, bool has_summand) {
  const std::size_t left = has_summand ? 1 : 0;
  if (view.operands() != left + 2) return std::nullopt;
  NodeSplit split = whole(view, Locality::kRow);
  if (!follow_product(split, view, left, left + 1, output_dim)) return std::nullopt;
  if (has_summand && !follow_broadcast(split, view, 0, output_dim)) return std::nullopt;
  return split;
}

SlicedCall slice_product(const NodeView& view, const NodeSplit& split, int output_dim, Region rows, bool has_summand) {
  const bool has_columns = view.rank(has_summand ? 2 : 1) > 1;
  const int rows_dim = view.output_rank() - (has_columns ? 2 : 1);
  if (output_dim < rows_dim) return call_by_rows(view, split, rows);  // whole matrices
  const std::int64_t least = output_dim > rows_dim ? kMinColumns : kMinRows;
  return filled_call(view, split, rows, filling(rows, view.output_rows(output_dim), 1, least));
}

std::optional<std::int64_t> product_bytes(const NodeView& view, std::size_t operand, int dim, bool has_summand) {
  const std::size_t left = has_summand ? 1 : 0;
  const bool contracted = (operand == left && dim == view.rank(operand) - 1) ||
                          (operand == left + 1 && dim == std::max(0, view.rank(operand) - 2));
  return contracted ? std::optional(output_sums(view)) : std::nullopt;
}

Rule product_rule(bool has_summand) {
  return {[=](const NodeView& view, int output_dim) { return split_product(view, output_dim, has_summand); },
          [=](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            return slice_product(view, split, output_dim, rows, has_summand);
          },
          [=](const NodeView& view, std::size_t operand, int dim) {
            return product_bytes(view, operand, dim, has_summand);
          }};
}

// (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
struct Attention {
  int rank;
  bool causal;
  bool has_mask;
};

std::optional<Attention> read_attention(const NodeView& view) {
  const int rank = view.output_rank();
  if (view.operands() < 3 || view.operands() > 4 || rank < 2 || view.number(4) != 0) return std::nullopt;
  for (std::size_t i = 0; i < 3; ++i) {
    if (view.rank(i) != rank) return std::nullopt;
  }
  return Attention{rank, view.boolean(5), view.operands() == 4};
}

// A query row needs all keys and values, a causal one those up to its own place.
std::optional<NodeSplit> attention(const NodeView& view, int output_dim) {
  const auto read = read_attention(view);
  if (!read || output_dim == read->rank - 1) return std::nullopt;
  NodeSplit split = whole(view, Locality::kRow);
  if (!follow_same(split, view, 0, output_dim, output_dim)) return std::nullopt;
  if (read->has_mask && !follow_broadcast(split, view, 3, output_dim)) return std::nullopt;
  if (output_dim == read->rank - 2) {
    if (read->causal && read->has_mask) return std::nullopt;
    if (read->causal) {
      follow(split, 1, output_dim, maps::Prefix{});
      follow(split, 2, output_dim, maps::Prefix{});
    }
    return split;
  }
  // Batch and heads; heads that share keys are not split.
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const bool shared = view.rows(i, output_dim) == 1 && view.output_rows(output_dim) != 1;
    if (!shared && !follow_same(split, view, i, output_dim, output_dim)) return std::nullopt;
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
std::optional<std::int64_t> attention_bytes(const NodeView& view, std::size_t operand, int dim) {
  const auto read = read_attention(view);
  if (!read || (operand != 1 && operand != 2) || dim != read->rank - 2) return std::nullopt;
  const Tensor& output = view.output();
  const std::int64_t width = std::max<std::int64_t>(1, output.shape.back());
  return (output.elements() + 2 * (output.elements() / width)) * sum_bytes(output.dtype);
}

// (weight, indices, ...)
std::optional<NodeSplit> embedding(const NodeView& view, int output_dim) {
  if (view.operands() != 2 || view.rank(0) != 2) return std::nullopt;
  NodeSplit split = whole(view, Locality::kRow);
  const bool width = output_dim == view.output_rank() - 1;
  if (!follow_same(split, view, width ? 0 : 1, width ? 1 : output_dim, output_dim)) return std::nullopt;
  return split;
}

}  // namespace

void add_product_rules(Rules& rules) {
  rules["aten::linear"] = {linear, slice_linear, linear_bytes, linear_sums};
  for (const char* name : {"aten::matmul", "aten::mm", "aten::bmm"}) rules[name] = product_rule(false);
  for (const char* name : {"aten::addmm", "aten::baddbmm"}) rules[name] = product_rule(true);
  rules["aten::scaled_dot_product_attention"] = {attention, slice_attention, attention_bytes};
  rules["aten::embedding"] = {embedding, {}, {}};
}

}  // namespace atl::infer
