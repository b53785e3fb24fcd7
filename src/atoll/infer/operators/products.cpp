// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/infer/operators/states.h"

// Matrix products: rows of the left operand with all of the right one.
namespace atl::infer::operators {
namespace {

// Filled up to this many rows, a float32 product has the same bits as those rows of the whole on the processors tried,
// except for a few rows at its end.
constexpr std::int64_t kMinRows = 8;
constexpr std::int64_t kMinColumns = 16;

std::int64_t last(const Tensor& tensor) { return tensor.shape.back(); }

// Requires that all tensors of the call have the same floating type.
void require_one_type(const ArgumentReader& reader) {
  for (std::size_t i = 0; i < reader.operands(); ++i) {
    const Dtype dtype = reader.operand(i).dtype;
    reader.require(kFloats.has(dtype) && dtype == reader.operand(0).dtype,
                   "its operands must have the same floating type");
  }
}

// Matrices [..., n, k] and [..., k, p], or vectors.
struct Product {
  std::size_t left = 0;  // index of the operand; the right one follows
  Shape made;
  std::int64_t contracted = 1;
  double copied = 0;  // elements of operands that are broadcast, for each batch
};

// (self, left, right, beta, alpha), if there is a summand.
void require_summand(const CallView& view, const Shape& made) {
  view.require(CallView::spreads(view.tensor(0).shape, made), "its summand does not fit its product");
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    static_cast<void>(view.real(argument));
    view.require_fits(argument, view.tensor(0).dtype);
  }
}

Made product(const CallView& view, const Product& call) {
  if (call.left == 1) require_summand(view, call.made);
  Made made = with_copies(view, one(view, view.types().front().dtype, call.made));
  made.workspace_bytes += call.copied * static_cast<double>(bytes_of(view.types().front().dtype));
  made.operations = 2 * count_of(made.outputs.front().shape) * static_cast<double>(call.contracted);
  return made;
}

std::int64_t output_sums(const NodeView& view) { return view.output().elements() * sum_bytes(view.output().dtype); }

// (input, weight, bias)
Product read_linear(const ArgumentReader& reader) {
  reader.require_arguments(3);
  const Tensor& input = reader.tensor(0);
  const Tensor& weight = reader.tensor(1);
  require_one_type(reader);
  reader.require(!input.shape.empty() && weight.shape.size() == 2,
                 "its weight must be a matrix, and its input must have dimensions");
  reader.require(last(input) == last(weight), "its weight does not fit its input");
  require_weight(reader, 2, input, {weight.shape[0]});
  Product call{0, input.shape, last(input)};
  call.made.back() = weight.shape[0];
  return call;
}

// The last dimension has one row of the weight each.
std::optional<NodeSplit> split_linear(const NodeView& view, const Product& call, int output_dim) {
  if (view.output_shape() != call.made) return std::nullopt;
  if (output_dim != view.output_rank() - 1) return same_rows(view, Locality::kRow, output_dim, output_dim);
  NodeSplit split = whole(view, Locality::kRow);
  for (std::size_t i = 1; i < view.operands(); ++i) {
    if (!follow_same(split, view, i, 0, output_dim)) return std::nullopt;
  }
  return split;
}

SlicedCall slice_linear(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  const std::int64_t count = view.output_rows(output_dim);
  const int last_dim = view.output_rank() - 1;
  if (output_dim == last_dim) return filled_call(view, split, rows, filling(rows, count, 1, kMinColumns));
  const std::int64_t others = elements_of_row(view, output_dim, 0, last_dim, kMinRows);
  return filled_call(view, split, rows, filling(rows, count, others, kMinRows));
}

std::optional<std::int64_t> linear_bytes(const NodeView& view, const Product& /*call*/, std::size_t operand, int dim) {
  const bool contracted = (operand == 0 && dim == view.rank(0) - 1) || (operand == 1 && dim == 1);
  return contracted ? std::optional(output_sums(view)) : std::nullopt;
}

// The weight's columns go with the input's.
std::optional<Partial> linear_sums(const NodeView& view, const Product& /*call*/, std::size_t operand, int dim) {
  return operand == 0 ? linear_states(view, dim) : std::nullopt;
}

// (self, other)
Product read_matmul(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Tensor& left = reader.tensor(0);
  const Tensor& right = reader.tensor(1);
  require_one_type(reader);
  const std::size_t a = left.shape.size();
  const std::size_t b = right.shape.size();
  reader.require(a > 0 && b > 0, "its operands must have dimensions");
  reader.require(last(left) == right.shape[b == 1 ? 0 : b - 2], "its operands do not fit together");
  const auto before = [](const Shape& shape) {
    return Shape(shape.begin(), shape.end() - std::min<std::ptrdiff_t>(std::ssize(shape), 2));
  };
  Product call{0, reader.broadcast(before(left.shape), before(right.shape)), last(left)};
  const double rows = a > 1 ? static_cast<double>(left.shape[a - 2]) : 1;
  const double columns = b > 1 ? static_cast<double>(last(right)) : 1;
  call.copied = count_of(call.made) * static_cast<double>(last(left)) * (rows + columns);
  if (a > 1) call.made.push_back(left.shape[a - 2]);
  if (b > 1) call.made.push_back(last(right));
  return call;
}

// Matrices [n, k] and [k, p], with a batch before them if `rank` is 3, and with a summand as the first operand.
Product read_matrices(const ArgumentReader& reader, bool has_summand, std::size_t rank) {
  reader.require_arguments(has_summand ? 5 : 2);
  Product call;
  call.left = has_summand ? 1 : 0;
  const Tensor& left = reader.tensor(call.left);
  const Tensor& right = reader.tensor(call.left + 1);
  require_one_type(reader);
  reader.require(left.shape.size() == rank && right.shape.size() == rank,
                 "its operands have the wrong number of dimensions");
  reader.require(last(left) == right.shape[rank - 2], "its operands do not fit together");
  reader.require(rank == 2 || left.shape[0] == right.shape[0], "its operands differ in batch size");
  call.made = left.shape;
  call.made.back() = last(right);
  call.contracted = last(left);
  return call;
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
  // Dimensions before the matrices are broadcast, counted from the last of them.
  const int from_last = last - (has_rows ? 1 : 0) - (has_columns ? 1 : 0) - output_dim;
  return follow_or_whole(split, view, left, view.rank(left) - 3 - from_last, output_dim) &&
         follow_or_whole(split, view, right, view.rank(right) - 3 - from_last, output_dim);
}

std::optional<NodeSplit> split_product(const NodeView& view, const Product& call, int output_dim) {
  if (view.operands() != call.left + 2 || view.output_shape() != call.made) return std::nullopt;
  NodeSplit split = whole(view, Locality::kRow);
  if (!follow_product(split, view, call.left, call.left + 1, output_dim)) return std::nullopt;
  if (call.left == 1 && !follow_broadcast(split, view, 0, output_dim)) return std::nullopt;
  return split;
}

SlicedCall slice_product(const NodeView& view, const Product& call, const NodeSplit& split, int output_dim,
                         Region rows) {
  const int rows_dim = view.output_rank() - (view.rank(call.left + 1) > 1 ? 2 : 1);
  if (output_dim < rows_dim) return call_by_rows(view, split, rows);  // whole matrices
  const std::int64_t least = output_dim > rows_dim ? kMinColumns : kMinRows;
  return filled_call(view, split, rows, filling(rows, view.output_rows(output_dim), 1, least));
}

std::optional<std::int64_t> product_bytes(const NodeView& view, const Product& call, std::size_t operand, int dim) {
  const bool contracted = (operand == call.left && dim == view.rank(operand) - 1) ||
                          (operand == call.left + 1 && dim == std::max(0, view.rank(operand) - 2));
  return contracted ? std::optional(output_sums(view)) : std::nullopt;
}

template <typename Read>
Operator product_operator(Read read) {
  return {reading(read, product),
          {reading(read, split_product), reading(read, slice_product), reading(read, product_bytes)}};
}

struct Equation {
  std::vector<std::string> operands;
  std::string output;
};

Equation read_equation(const CallView& view, const std::string& text) {
  Equation equation{{""}, {}};
  bool has_arrow = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter) {
      (has_arrow ? equation.output : equation.operands.back()) += c;
    } else if (c == ',' && !has_arrow) {
      equation.operands.emplace_back();
    } else if (c == '-' && !has_arrow && text.substr(i, 2) == "->") {
      has_arrow = true;
      ++i;
    } else if (c != ' ') {
      view.refuse("its equation may only have letters, commas and one arrow");
    }
  }
  view.require(has_arrow, "its equation lacks an arrow and its result");
  return equation;
}

bool has_twice(std::string letters) {
  std::sort(letters.begin(), letters.end());
  return std::adjacent_find(letters.begin(), letters.end()) != letters.end();
}

// (equation, tensors, path): of one or two tensors, each letter a dimension.
Made einsum(const CallView& view) {
  view.require_arguments(3);
  view.require_null(2);
  const Equation equation = read_equation(view, view.text(0).substr(0, 64));
  const std::vector<const Tensor*> tensors = view.tensors(1);
  require_one_type(view);
  view.require(!tensors.empty() && tensors.size() <= 2 && tensors.size() == equation.operands.size(),
               "it must have the operands of its equation, at most two");
  std::map<char, std::int64_t> sizes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& letters = equation.operands[i];
    view.require(!has_twice(letters) && letters.size() == tensors[i]->shape.size(),
                 "its equation does not fit its operands");
    for (std::size_t k = 0; k < letters.size(); ++k) {
      const auto [known, is_new] = sizes.try_emplace(letters[k], tensors[i]->shape[k]);
      view.require(is_new || known->second == tensors[i]->shape[k], "dimensions with the same letter differ in size");
    }
  }
  view.require(!has_twice(equation.output), "its equation has a dimension twice in its result");
  Shape shape;
  for (const char letter : equation.output) {
    view.require(sizes.contains(letter), "its equation has a dimension in its result that no operand has");
    shape.push_back(sizes[letter]);
  }
  Made made = product(view, {0, std::move(shape), 1});
  made.workspace_bytes *= 2;
  made.operations = 2;
  for (const auto& [letter, size] : sizes) made.operations *= static_cast<double>(size);
  return made;
}

}  // namespace

void add_products(Table& table) {
  table["aten::linear"] = {reading(read_linear, product),
                           {reading(read_linear, split_linear), slice_linear, reading(read_linear, linear_bytes),
                            reading(read_linear, linear_sums)}};
  table["aten::matmul"] = product_operator(read_matmul);
  const auto add = [&](const char* name, bool has_summand, std::size_t rank) {
    table[name] =
        product_operator([=](const ArgumentReader& reader) { return read_matrices(reader, has_summand, rank); });
  };
  add("aten::mm", false, 2);
  add("aten::bmm", false, 3);
  add("aten::addmm", true, 2);
  add("aten::baddbmm", true, 3);
  table["aten::einsum"] = {einsum};
}

}  // namespace atl::infer::operators
