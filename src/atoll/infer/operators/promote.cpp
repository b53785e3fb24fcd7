// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/promote.h"

#include <array>
#include <optional>

namespace atl::infer::operators {
namespace {

using MaybeDtype = std::optional<Dtype>;

MaybeDtype either(MaybeDtype a, MaybeDtype b) noexcept {
  if (!a || !b) return a ? a : b;
  return promote(*a, *b);
}

MaybeDtype combine(MaybeDtype higher, MaybeDtype lower) noexcept {
  if (!higher || !lower) return higher ? higher : lower;
  if (is_floating(*higher)) return higher;
  if (*higher == Dtype::kBool || is_floating(*lower)) return promote(*higher, *lower);
  return higher;
}

}  // namespace

Dtype promote(Dtype a, Dtype b) noexcept {
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (a == Dtype::kBool || b == Dtype::kBool) return a == Dtype::kBool ? b : a;
  // Neither half type can hold the other's values, nor can int8 and uint8.
  if (a != b && bytes_of(a) == bytes_of(b)) return is_floating(a) ? Dtype::kFloat32 : Dtype::kInt16;
  return bytes_of(a) >= bytes_of(b) ? a : b;
}

Dtype result_type(std::span<const Operand> operands) noexcept {
  std::array<MaybeDtype, 3> kinds;  // tensors with dimensions, tensors without, numbers
  for (const Operand& operand : operands) {
    Dtype dtype = operand.dtype;
    if (operand.is_number && is_floating(dtype)) dtype = Dtype::kFloat32;
    const std::size_t kind = !operand.shape.empty() ? 0 : (operand.is_number ? 2 : 1);
    kinds.at(kind) = either(kinds.at(kind), dtype);
  }
  return combine(kinds[0], combine(kinds[1], kinds[2])).value_or(Dtype::kFloat32);
}

}  // namespace atl::infer::operators
