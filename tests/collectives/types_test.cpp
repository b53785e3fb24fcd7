// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/types.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace atl::collectives {
namespace {

TEST(Types, NamesAreDistinct) {
  std::set<std::string> dtypes;
  std::set<std::string> ops;
  std::set<std::string> operations;
  for (int i = 0; i < kDataTypeCount; ++i) dtypes.insert(to_string(static_cast<DataType>(i)));
  for (int i = 0; i < kReduceOpCount; ++i) ops.insert(to_string(static_cast<ReduceOp>(i)));
  for (int i = 0; i <= static_cast<int>(Operation::kReceive); ++i)
    operations.insert(to_string(static_cast<Operation>(i)));
  EXPECT_EQ(dtypes.size(), static_cast<std::size_t>(kDataTypeCount));
  EXPECT_EQ(ops.size(), static_cast<std::size_t>(kReduceOpCount));
  EXPECT_EQ(operations.size(), 11U);
  for (const auto& names : {dtypes, ops, operations}) EXPECT_FALSE(names.contains("unknown"));
  EXPECT_STREQ(to_string(DataType::kFloat32), "float32");
  EXPECT_STREQ(to_string(ReduceOp::kSum), "sum");
  EXPECT_STREQ(to_string(Operation::kAllReduce), "all_reduce");
}

TEST(Types, ValuesFromAPeerAreNamedSafely) {
  EXPECT_STREQ(to_string(static_cast<DataType>(200)), "unknown");
  EXPECT_STREQ(to_string(static_cast<ReduceOp>(200)), "unknown");
  EXPECT_STREQ(to_string(static_cast<Operation>(200)), "unknown");
  EXPECT_EQ(size_of(static_cast<DataType>(200)), 0U);
}

TEST(Types, SizesAreTheElements) {
  const std::size_t sizes[kDataTypeCount] = {8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 1, 8, 16};
  for (int i = 0; i < kDataTypeCount; ++i) EXPECT_EQ(size_of(static_cast<DataType>(i)), sizes[i]) << i;
}

TEST(Types, CombinationsWithoutMeaningAreNotSupported) {
  int supported = 0;
  for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      supported += is_supported(static_cast<ReduceOp>(op), static_cast<DataType>(dtype)) ? 1 : 0;
    }
  }
  // 6 floats without the 3 bitwise ones, 5 integers, bool without AVG and PREMUL_SUM, 2 complex with 4 operations.
  EXPECT_EQ(supported, 6 * 6 + 5 * 9 + 7 + 2 * 4);
  EXPECT_FALSE(is_supported(ReduceOp::kBand, DataType::kFloat32));
  EXPECT_FALSE(is_supported(ReduceOp::kBxor, DataType::kFloat8E5M2));
  EXPECT_FALSE(is_supported(ReduceOp::kMin, DataType::kComplex64));
  EXPECT_FALSE(is_supported(ReduceOp::kAvg, DataType::kBool));
  EXPECT_TRUE(is_supported(ReduceOp::kBor, DataType::kBool));
  EXPECT_TRUE(is_supported(ReduceOp::kPremulSum, DataType::kComplex128));
  EXPECT_FALSE(is_supported(static_cast<ReduceOp>(200), DataType::kInt8));
}

}  // namespace
}  // namespace atl::collectives
