// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/graph.h"

namespace atl::infer {

/// The maximum number of elements of any tensor in an admitted call: many kernels count in 32 bits.
inline constexpr std::int64_t kMaxElements = (std::int64_t{1} << 31) - 1;
/// The maximum of any count of elements or rows.
inline constexpr std::int64_t kMaxAdmittedRows = kMaxElements;
/// The maximum of strides, dilations, windows and paddings, more than any model needs.
inline constexpr std::int64_t kMaxStep = 4096;

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

/// Error(kProtocol) for a call that its operator would refuse.
class UnfitCall final : public Error {
 public:
  explicit UnfitCall(const std::string& what) : Error(ErrorKind::kProtocol, what) {}
};

/// The arguments of one call of an operator, and the types of the tensors among them. Each operator's arguments are
/// parsed once, with this class, for admission and for rules. For anything other than they request, functions throw
/// Error(kRefused) when admission reads (CallView), and UnfitCall when a rule does (NodeView); both name the call and
/// the argument. A rule's reader also takes one integer for all dimensions, and a dimension that is listed twice.
/// Operands are the tensors among the arguments, counted in order. Borrows everything.
class ArgumentReader {
 public:
  [[noreturn]] void refuse(const std::string& reason) const;
  void require(bool good, const char* reason) const {
    if (!good) refuse(reason);
  }
  /// Names the call in errors.
  virtual std::string name() const = 0;

  std::size_t arguments() const noexcept { return args_.size(); }
  void require_arguments(std::size_t count) const;
  const Argument& argument(std::size_t argument) const;

  virtual std::size_t operands() const noexcept = 0;
  virtual const Tensor& operand(std::size_t operand) const = 0;
  /// The index of the operand that is argument `argument`; none for null and for a number in place of a tensor.
  std::optional<std::size_t> operand_at(std::size_t argument) const;
  const Tensor& tensor(std::size_t argument) const;
  /// A tensor of one of these types.
  const Tensor& tensor(std::size_t argument, Dtypes dtypes) const;
  const Tensor* try_tensor(std::size_t argument) const;                     ///< null if the argument is null
  std::vector<const Tensor*> tensors(std::size_t argument) const;           ///< none of them null
  std::vector<const Tensor*> optional_tensors(std::size_t argument) const;  ///< with null for absent ones

  bool is_null(std::size_t argument) const;
  void require_null(std::size_t argument) const;
  bool boolean(std::size_t argument) const;
  std::int64_t integer(std::size_t argument, std::int64_t low = -kIntegerBound,
                       std::int64_t high = kIntegerBound) const;
  std::optional<std::int64_t> try_integer(std::size_t argument, std::int64_t low, std::int64_t high) const;
  double real(std::size_t argument) const;  ///< a float or an integer; finite
  Ints integers(std::size_t argument, std::int64_t low = -kIntegerBound, std::int64_t high = kIntegerBound) const;
  /// A list with one integer for each of `dims` dimensions.
  Ints per_dim(std::size_t argument, std::size_t dims, std::int64_t low, std::int64_t high) const;
  Floats floats(std::size_t argument) const;
  std::string text(std::size_t argument) const;
  std::optional<Dtype> try_dtype(std::size_t argument) const;

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

 protected:
  ArgumentReader(const std::vector<Argument>& args, bool is_rule) : args_(args), is_rule_(is_rule) {}
  ~ArgumentReader() = default;
  ArgumentReader(const ArgumentReader&) = default;
  ArgumentReader& operator=(const ArgumentReader&) = delete;

  /// Refuses an argument of another type than `wanted`.
  [[noreturn]] void wrong(std::size_t argument, const std::string& wanted) const;
  /// Refuses the value of an argument.
  [[noreturn]] void unfit(std::size_t argument, const std::string& wanted) const;

 private:
  std::size_t operands_before(std::size_t argument) const;
  template <typename Type>
  const Type& of_type(std::size_t argument, const char* wanted) const;

  const std::vector<Argument>& args_;
  bool is_rule_;
};

/// The number of tensors in an argument.
std::size_t tensors_in(const Argument& argument);

}  // namespace atl::infer
