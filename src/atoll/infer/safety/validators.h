// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atoll/infer/safety/call_view.h"

// Who may be called, and with what: one validator for each operator, by family, and what they share.
namespace atl::infer::safety {

/// What a call makes, and what it costs.
struct Made {
  std::vector<Tensor> outputs;
  bool is_list = false;        ///< they are the elements of one list
  double workspace_bytes = 0;  ///< that its kernel may need beside them
  double operations = 0;       ///< additions and multiplications; an element that is moved counts as kMove
};

inline constexpr double kMove = 4;

/// Strides, dilations, windows and paddings: no model needs as many.
inline constexpr std::int64_t kMaxStep = 4096;
/// Any count of elements or rows.
inline constexpr std::int64_t kMaxAdmittedRows = kMaxElements;

/// Looks at every argument; Error(kRefused) unless the call does what is said and nothing else, for any values of its
/// operands.
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

/// The product of the sizes, which are not negative, without a bound.
double count_of(const Shape& shape);
double bytes_in(const Tensor& tensor);

/// One output of this type, each element moved once.
Made one(const CallView& view, Dtype dtype, Shape shape);

/// The same elements seen differently.
Made seen(const CallView& view, const Tensor& source, Shape shape);

/// Adds copies of all operands to what a call needs: kernels that want them in another order make one.
Made with_copies(const CallView& view, Made made);

/// Rows that a window gives: floor((rows + padding - dilation (kernel - 1) - 1) / stride) + 1; refused below 1.
std::int64_t window_rows(const CallView& view, std::int64_t rows, std::int64_t padding, std::int64_t kernel,
                         std::int64_t stride, std::int64_t dilation);

/// Whether a weight or bias, if there is one, has the type of `input` and this shape; refused otherwise.
void require_weight(const CallView& view, std::size_t argument, const Tensor& input, const Shape& shape);

}  // namespace atl::infer::safety
