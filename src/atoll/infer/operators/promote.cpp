// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/promote.h"

#include <algorithm>
#include <array>
#include <optional>

namespace atl::infer::operators {
namespace {

bool is_half(Dtype dtype) noexcept { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16; }

Dtype promote_floating(Dtype a, Dtype b) noexcept {
  if (a == Dtype::kFloat64 || b == Dtype::kFloat64) return Dtype::kFloat64;
  // Neither half type can hold the other's values.
  return is_half(a) && is_half(b) ? Dtype::kFloat32 : (is_half(a) ? b : a);
}

Dtype promote_integers(Dtype a, Dtype b) noexcept {
  if (a == Dtype::kUint8 && b == Dtype::kInt8) return Dtype::kInt16;
  if (a == Dtype::kInt8 && b == Dtype::kUint8) return Dtype::kInt16;
  return bytes_of(a) >= bytes_of(b) ? a : b;
}

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
  if (a == b) return a;
  if (is_floating(a) && is_floating(b)) return promote_floating(a, b);
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  if (a == Dtype::kBool) return b;
  if (b == Dtype::kBool) return a;
  return promote_integers(a, b);
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
