// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/promote.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace atl::infer::operators {
namespace {

constexpr std::array kAll{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt8,
                          Dtype::kInt16,   Dtype::kInt32,    Dtype::kInt64,   Dtype::kUint8,   Dtype::kBool};

Operand rows(Dtype dtype) { return {dtype, {3}, false}; }
Operand single(Dtype dtype) { return {dtype, {}, false}; }
Operand number(Dtype dtype) { return {dtype, {}, true}; }

Dtype of(const std::vector<Operand>& operands) { return result_type(operands); }

TEST(Promote, IsALattice) {
  for (const Dtype a : kAll) {
    EXPECT_EQ(promote(a, a), a);
    EXPECT_EQ(promote(a, Dtype::kBool), a);
    EXPECT_EQ(promote(a, Dtype::kFloat64), Dtype::kFloat64);
    for (const Dtype b : kAll) {
      EXPECT_EQ(promote(a, b), promote(b, a));
      EXPECT_EQ(promote(promote(a, b), a), promote(a, b));
      EXPECT_EQ(is_floating(promote(a, b)), is_floating(a) || is_floating(b));
    }
  }
}

TEST(Promote, KnowsTheExceptions) {
  EXPECT_EQ(promote(Dtype::kUint8, Dtype::kInt8), Dtype::kInt16);
  EXPECT_EQ(promote(Dtype::kFloat16, Dtype::kBfloat16), Dtype::kFloat32);
  EXPECT_EQ(promote(Dtype::kInt64, Dtype::kFloat16), Dtype::kFloat16);
}

TEST(Promote, DimensionsWeighMoreThanNoneAndNumbersLeast) {
  EXPECT_EQ(of({rows(Dtype::kFloat32), single(Dtype::kFloat64)}), Dtype::kFloat32);
  EXPECT_EQ(of({rows(Dtype::kInt8), single(Dtype::kInt64)}), Dtype::kInt8);
  EXPECT_EQ(of({rows(Dtype::kInt8), single(Dtype::kFloat64)}), Dtype::kFloat64);
  EXPECT_EQ(of({rows(Dtype::kBool), number(Dtype::kInt64)}), Dtype::kInt64);
  EXPECT_EQ(of({rows(Dtype::kInt32), number(Dtype::kFloat64)}), Dtype::kFloat32);
  EXPECT_EQ(of({single(Dtype::kFloat16), number(Dtype::kFloat64)}), Dtype::kFloat16);
  EXPECT_EQ(of({number(Dtype::kInt64), number(Dtype::kFloat64)}), Dtype::kFloat32);
}

}  // namespace
}  // namespace atl::infer::operators
