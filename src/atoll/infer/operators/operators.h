// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atoll/infer/operators/call_view.h"
#include "atoll/infer/regions.h"

// The operators that Atoll knows, by family: how a call is admitted, and how its rows are computed in parts. Both read
// an operator's arguments with the same parser. docs/adding-an-operator.md shows one from its schema to its tests.
namespace atl::infer::operators {

/// The outputs of a call and its cost.
struct Made {
  std::vector<Tensor> outputs;
  bool is_list = false;        ///< the outputs are the elements of one list
  double workspace_bytes = 0;  ///< that its kernel may need in addition
  double operations = 0;       ///< additions and multiplications; moving an element counts as kMove
};

inline constexpr double kMove = 4;

struct Operator {
  /// Checks every argument and throws Error(kRefused) unless the call makes exactly what it returns, and has no other
  /// effect, for any values of its operands.
  std::function<Made(const CallView&)> admit;
  Rule rule = {};            ///< without it, such nodes are computed whole
  bool takes_empty = false;  ///< operands may have no elements
};

using Table = std::map<std::string, Operator>;  // by "aten::add.Tensor"

void add_attention(Table& table);
void add_binary(Table& table);
void add_borders(Table& table);
void add_convolutions(Table& table);
void add_creation(Table& table);
void add_dimensions(Table& table);
void add_element(Table& table);
void add_indexing(Table& table);
void add_norms(Table& table);
void add_orders(Table& table);
void add_parts(Table& table);
void add_pools(Table& table);
void add_products(Table& table);
void add_recurrent(Table& table);
void add_reductions(Table& table);
void add_resize(Table& table);
void add_softmax(Table& table);
void add_views(Table& table);

/// The operators of all families.
const Table& table();

/// The product of the sizes, which must not be negative, without overflow.
double count_of(const Shape& shape);
double bytes_in(const Tensor& tensor);

/// One output of this type, each element moved once.
Made one(const CallView& view, Dtype dtype, Shape shape);

/// A view of the same elements.
Made seen(const CallView& view, const Tensor& source, Shape shape);

/// Adds copies of all operands to a call's workspace, for kernels that copy them into another order.
Made with_copies(const CallView& view, Made made);

/// The rows that a window makes: floor((rows + padding - dilation (kernel - 1) - 1) / stride) + 1; refused below 1.
std::int64_t window_rows(const ArgumentReader& reader, std::int64_t rows, std::int64_t padding, std::int64_t kernel,
                         std::int64_t stride, std::int64_t dilation);

/// Refuses a weight or bias, if there is one, unless it has the type of `input` and this shape.
void require_weight(const ArgumentReader& reader, std::size_t argument, const Tensor& input, const Shape& shape);

}  // namespace atl::infer::operators
