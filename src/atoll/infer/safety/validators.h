// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atoll/infer/safety/call_view.h"

// The operators that may be called, and their arguments: one validator for each operator, by family, and shared
// helpers.
namespace atl::infer::safety {

/// The outputs of a call and its cost.
struct Made {
  std::vector<Tensor> outputs;
  bool is_list = false;        ///< the outputs are the elements of one list
  double workspace_bytes = 0;  ///< that its kernel may need in addition
  double operations = 0;       ///< additions and multiplications; moving an element counts as kMove
};

inline constexpr double kMove = 4;

/// The maximum of strides, dilations, windows and paddings, more than any model needs.
inline constexpr std::int64_t kMaxStep = 4096;
/// The maximum of any count of elements or rows.
inline constexpr std::int64_t kMaxAdmittedRows = kMaxElements;

/// The validator of an operator. It checks every argument and throws Error(kRefused) unless the call makes exactly what
/// it returns, and has no other effect, for any values of its operands.
struct Operator {
  std::function<Made(const CallView&)> validate;
  bool takes_empty = false;  ///< operands may have no elements
};

using Operators = std::map<std::string, Operator>;  // by "aten::add.Tensor"

void add_element_validators(Operators& operators);
void add_binary_validators(Operators& operators);
void add_convolution_validators(Operators& operators);
void add_pool_validators(Operators& operators);
void add_norm_validators(Operators& operators);
void add_product_validators(Operators& operators);
void add_attention_validators(Operators& operators);
void add_view_validators(Operators& operators);
void add_part_validators(Operators& operators);
void add_border_validators(Operators& operators);
void add_reduction_validators(Operators& operators);
void add_indexing_validators(Operators& operators);
void add_creation_validators(Operators& operators);
void add_resize_validators(Operators& operators);
void add_recurrent_validators(Operators& operators);

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
std::int64_t window_rows(const CallView& view, std::int64_t rows, std::int64_t padding, std::int64_t kernel,
                         std::int64_t stride, std::int64_t dilation);

/// Refuses a weight or bias, if there is one, unless it has the type of `input` and this shape.
void require_weight(const CallView& view, std::size_t argument, const Tensor& input, const Shape& shape);

}  // namespace atl::infer::safety
