// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Matrix products.
namespace atl::infer::safety {
namespace {

std::int64_t last(const Tensor& tensor) { return tensor.shape.back(); }

// Requires that all tensors of the call have the same floating type.
void require_one_type(const CallView& view) {
  for (const Tensor& operand : view.operands()) {
    view.require(kFloats.has(operand.dtype) && operand.dtype == view.operands().front().dtype,
                 "its operands must have the same floating type");
  }
}

Made product(const CallView& view, Shape shape, std::int64_t contracted) {
  Made made = with_copies(view, one(view, view.operands().front().dtype, std::move(shape)));
  made.operations = 2 * count_of(made.outputs.front().shape) * static_cast<double>(contracted);
  return made;
}

// (input, weight, bias)
Made linear(const CallView& view) {
  view.require_arguments(3);
  const Tensor& input = view.tensor(0);
  const Tensor& weight = view.tensor(1);
  require_one_type(view);
  view.require(!input.shape.empty() && weight.shape.size() == 2,
               "its weight must be a matrix, and its input must have dimensions");
  view.require(last(input) == last(weight), "its weight does not fit its input");
  require_weight(view, 2, input, {weight.shape[0]});
  Shape shape = input.shape;
  shape.back() = weight.shape[0];
  return product(view, std::move(shape), last(input));
}

// (self, other)
Made matmul(const CallView& view) {
  view.require_arguments(2);
  const Tensor& left = view.tensor(0);
  const Tensor& right = view.tensor(1);
  require_one_type(view);
  const std::size_t a = left.shape.size();
  const std::size_t b = right.shape.size();
  view.require(a > 0 && b > 0, "its operands must have dimensions");
  view.require(last(left) == right.shape[b == 1 ? 0 : b - 2], "its operands do not fit together");
  const Shape before_left(left.shape.begin(),
                          left.shape.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(a, 2)));
  const Shape before_right(right.shape.begin(),
                           right.shape.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(b, 2)));
  Shape shape = view.broadcast(before_left, before_right);
  const double batches = count_of(shape);
  if (a > 1) shape.push_back(left.shape[a - 2]);
  if (b > 1) shape.push_back(last(right));
  Made made = product(view, std::move(shape), last(left));
  // Operands that are broadcast are copied for each batch.
  const double rows = a > 1 ? static_cast<double>(left.shape[a - 2]) : 1;
  const double columns = b > 1 ? static_cast<double>(last(right)) : 1;
  made.workspace_bytes +=
      batches * static_cast<double>(last(left)) * (rows + columns) * static_cast<double>(bytes_of(left.dtype));
  return made;
}

// Matrices [n, k] and [k, p], with a batch before them if `rank` is 3.
Shape matrices(const CallView& view, std::size_t left_place, std::size_t rank) {
  const Tensor& left = view.tensor(left_place);
  const Tensor& right = view.tensor(left_place + 1);
  require_one_type(view);
  view.require(left.shape.size() == rank && right.shape.size() == rank,
               "its operands have the wrong number of dimensions");
  view.require(last(left) == right.shape[rank - 2], "its operands do not fit together");
  view.require(rank == 2 || left.shape[0] == right.shape[0], "its operands differ in batch size");
  Shape shape = left.shape;
  shape.back() = last(right);
  return shape;
}

// (self, mat2)
Made plain(const CallView& view, std::size_t rank) {
  view.require_arguments(2);
  Shape shape = matrices(view, 0, rank);
  return product(view, std::move(shape), last(view.tensor(0)));
}

// (self, left, right, beta, alpha)
Made added(const CallView& view, std::size_t rank) {
  view.require_arguments(5);
  Shape shape = matrices(view, 1, rank);
  view.require(CallView::spreads(view.tensor(0).shape, shape), "its summand does not fit its product");
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    static_cast<void>(view.real(argument));
    view.require_fits(argument, view.tensor(0).dtype);
  }
  return product(view, std::move(shape), last(view.tensor(1)));
}

struct Equation {
  std::vector<std::string> operands;
  std::string output;
};

Equation parse(const CallView& view, const std::string& text) {
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
  const Equation equation = parse(view, view.text(0).substr(0, 64));
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
  Made made = product(view, std::move(shape), 1);
  made.workspace_bytes *= 2;
  made.operations = 2;
  for (const auto& [letter, size] : sizes) made.operations *= static_cast<double>(size);
  return made;
}

}  // namespace

void add_product_validators(Operators& operators) {
  operators["aten::linear"] = {linear};
  operators["aten::matmul"] = {matmul};
  operators["aten::mm"] = {[](const CallView& view) { return plain(view, 2); }};
  operators["aten::bmm"] = {[](const CallView& view) { return plain(view, 3); }};
  operators["aten::addmm"] = {[](const CallView& view) { return added(view, 2); }};
  operators["aten::baddbmm"] = {[](const CallView& view) { return added(view, 3); }};
  operators["aten::einsum"] = {einsum};
}

}  // namespace atl::infer::safety
