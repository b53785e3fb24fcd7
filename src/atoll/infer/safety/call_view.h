// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/safety/promote.h"

namespace atl::infer::safety {

/// The maximum number of elements of any tensor in an admitted call: many kernels count in 32 bits.
inline constexpr std::int64_t kMaxElements = (std::int64_t{1} << 31) - 1;

/// A set of element types.
class Dtypes {
 public:
  constexpr Dtypes(std::initializer_list<Dtype> dtypes) {
    for (const Dtype dtype : dtypes) bits_ |= 1U << static_cast<unsigned>(dtype);
  }
  constexpr bool has(Dtype dtype) const noexcept { return (bits_ >> static_cast<unsigned>(dtype) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

inline constexpr Dtypes kFloats{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64};
inline constexpr Dtypes kNumbers{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt8,
                                 Dtype::kInt16,   Dtype::kInt32,    Dtype::kInt64,   Dtype::kUint8};
inline constexpr Dtypes kWhole{Dtype::kInt8, Dtype::kInt16, Dtype::kInt32, Dtype::kInt64, Dtype::kUint8, Dtype::kBool};
inline constexpr Dtypes kAny{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt8,
                             Dtype::kInt16,   Dtype::kInt32,    Dtype::kInt64,   Dtype::kUint8,   Dtype::kBool};

/// One call of an operator as its validator reads it: the arguments, and the types of the tensors among them. Functions
/// throw Error(kRefused), which names the call and the argument, for anything other than they request. Borrows
/// everything.
class CallView {
 public:
  /// `where` names the call in errors. `operands` are the types of all tensors among `args`, in order (another number
  /// is Error(kInvalidArgument)). Tensors of more than kMaxElements are refused, and without `takes_empty` also tensors
  /// without elements.
  CallView(std::string where, const std::vector<Argument>& args, std::span<const Tensor> operands, bool takes_empty);

  [[noreturn]] void refuse(const std::string& reason) const;
  void require(bool good, const char* reason) const {
    if (!good) refuse(reason);
  }

  std::size_t arguments() const noexcept { return args_.size(); }
  void require_arguments(std::size_t count) const;

  const Tensor& tensor(std::size_t argument) const;
  /// A tensor of one of these types.
  const Tensor& tensor(std::size_t argument, Dtypes dtypes) const;
  const Tensor* try_tensor(std::size_t argument) const;  ///< null if the argument is null
  /// A tensor, or a number in its place.
  Operand operand(std::size_t argument) const;
  std::vector<const Tensor*> tensors(std::size_t argument) const;           ///< none of them null
  std::vector<const Tensor*> optional_tensors(std::size_t argument) const;  ///< with null for absent ones
  std::span<const Tensor> operands() const noexcept { return operands_; }

  bool is_null(std::size_t argument) const;
  void require_null(std::size_t argument) const;
  bool boolean(std::size_t argument) const;
  std::int64_t integer(std::size_t argument, std::int64_t low, std::int64_t high) const;
  std::optional<std::int64_t> try_integer(std::size_t argument, std::int64_t low, std::int64_t high) const;
  double real(std::size_t argument) const;  ///< a float or an integer; finite
  /// A number as an operand, for arguments that cannot be tensors.
  Operand scalar(std::size_t argument) const;
  /// Requires a number that fits `dtype`, as PyTorch's checked conversion does.
  void require_fits(std::size_t argument, Dtype dtype) const;
  Ints integers(std::size_t argument, std::int64_t low, std::int64_t high) const;
  /// A list with one integer for each of `dims` dimensions.
  Ints per_dim(std::size_t argument, std::size_t dims, std::int64_t low, std::int64_t high) const;
  Floats floats(std::size_t argument) const;
  std::string text(std::size_t argument) const;
  std::optional<Dtype> try_dtype(std::size_t argument) const;
  /// Requires null or a format that a tensor of `rank` dimensions can have.
  void require_memory_format(std::size_t argument, std::size_t rank) const;
  /// Checks the four arguments dtype, layout, device and pin_memory from `argument` on; returns the dtype, or
  /// `fallback`.
  Dtype options(std::size_t argument, Dtype fallback) const;

  /// The dimension from 0 that `dim` means in a tensor of `rank` dimensions: -1 is the last.
  int normal(std::int64_t dim, std::size_t rank) const;
  int dim(std::size_t argument, std::size_t rank) const;
  /// A list of different dimensions, or a single one.
  std::vector<int> dims(std::size_t argument, std::size_t rank) const;

  /// Returns `shape` if it has no negative size and not too many elements.
  Shape bounded(Shape shape) const;
  Shape broadcast(const Shape& a, const Shape& b) const;
  /// Returns whether `shape` can be broadcast to `target`.
  static bool spreads(const Shape& shape, const Shape& target);

 private:
  const Argument& at(std::size_t argument) const;
  [[noreturn]] void wrong(std::size_t argument, const std::string& wanted) const;

  std::string where_;
  const std::vector<Argument>& args_;
  std::span<const Tensor> operands_;
  std::vector<std::size_t> firsts_;  // by argument, its first operand
};

}  // namespace atl::infer::safety
