// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace atl::infer {

/// The places of a convolution's arguments after input, weight and bias. The defaults are those of aten::conv1d.
struct ConvolutionArguments {
  std::size_t stride = 3;
  std::size_t padding = 4;
  std::size_t dilation = 5;
  std::size_t groups = 6;
  std::size_t output_padding = 0;  ///< 0: the operator has none
  bool transposed = false;
  bool batched = false;  ///< an input without a batch is refused
};

/// aten::conv_transpose1d and its like.
inline constexpr ConvolutionArguments kTransposedArguments{3, 4, 7, 6, 5, true, false};

/// aten::convolution, whose argument 6 says whether it is transposed.
constexpr ConvolutionArguments either_arguments(bool transposed) { return {3, 4, 5, 8, 7, transposed, true}; }

}  // namespace atl::infer
