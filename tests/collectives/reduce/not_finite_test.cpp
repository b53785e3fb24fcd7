// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/log_recorder.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using ::testing::HasSubstr;

template <typename T>
std::optional<NotFinite> found_in(DataType dtype, const std::vector<T>& values) {
  return find_not_finite(dtype, std::as_bytes(std::span(values)));
}

struct Format {
  DataType dtype;
  std::size_t bytes;
  std::uint64_t nan, negative_nan, infinity;  // bits; infinity is 0 if there is none
  std::uint64_t largest;                      // finite, and the next above it is not
};

const Format kFormats[] = {
    {DataType::kFloat64, 8, 0x7ff8000000000000, 0xfff0000000000001, 0x7ff0000000000000, 0x7fefffffffffffff},
    {DataType::kFloat32, 4, 0x7fc00000, 0xff800001, 0x7f800000, 0x7f7fffff},
    {DataType::kFloat16, 2, 0x7e00, 0xfc01, 0x7c00, 0x7bff},
    {DataType::kBFloat16, 2, 0x7fc0, 0xff81, 0x7f80, 0x7f7f},
    {DataType::kFloat8E4M3, 1, 0x7f, 0xff, 0, 0x7e},
    {DataType::kFloat8E5M2, 1, 0x7e, 0xfd, 0x7c, 0x7b},
};

std::vector<std::byte> filled(const Format& format, std::size_t count, std::uint64_t bits) {
  std::vector<std::byte> data(count * format.bytes);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(data.data() + i * format.bytes, &bits, format.bytes);
  return data;
}

TEST(NotFinite, IsFoundInEveryFormatAtEveryPlace) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(to_string(format.dtype));
    for (const std::size_t count : {1U, 7U, 2048U, 5000U}) {
      auto data = filled(format, count, format.largest);
      EXPECT_FALSE(find_not_finite(format.dtype, data));
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        for (const std::uint64_t bits : {format.nan, format.negative_nan, format.infinity}) {
          if (bits == 0) continue;
          auto bad = data;
          std::memcpy(bad.data() + place * format.bytes, &bits, format.bytes);
          const auto found = find_not_finite(format.dtype, bad);
          ASSERT_TRUE(found);
          EXPECT_EQ(found->index, place);
          EXPECT_EQ(found->is_nan, bits != format.infinity);
        }
      }
    }
  }
}

TEST(NotFinite, IsTheFirstAndOfComplexNumbersEitherPart) {
  std::vector<float> values(100, 1.0f);
  values[70] = std::numeric_limits<float>::quiet_NaN();
  values[51] = -std::numeric_limits<float>::infinity();
  const auto found = found_in(DataType::kFloat32, values);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 51u);
  EXPECT_FALSE(found->is_nan);
  EXPECT_EQ(found_in(DataType::kComplex64, values)->index, 25u);
  EXPECT_FALSE(found_in(DataType::kInt32, std::vector<std::int32_t>(10, -1)));
  EXPECT_FALSE(find_not_finite(DataType::kFloat32, {}));
}

Call reduction(std::vector<float>& data, Operation operation = Operation::kAllReduce) {
  Call call;
  call.operation = operation;
  call.root = operation == Operation::kBroadcast ? 0 : -1;
  call.input = call.output = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
  return call;
}

RankOptions watching(ValueCheck check) {
  RankOptions options;
  options.islands = layout("ABA");
  options.check_values = check;
  return options;
}

TEST(ValueChecks, RaiseOnAllRanksAndNameTheFirst) {
  Ranks ranks(watching(ValueCheck::kRaise));
  const auto errors = ranks.run([](Group& group) {
    std::vector<float> data(100, 1.0f);
    group.run(reduction(data));
    if (group.rank() == 1) data[42] = std::numeric_limits<float>::quiet_NaN();
    group.run(reduction(data));
    group.barrier();
  });
  for (const auto& error : errors)
    EXPECT_THAT(error,
                HasSubstr("all_reduce #1 (sum, float32, 100 elements) on rank 1: element 42 of the input is NaN"));
}

TEST(ValueChecks, WarnOnceUntilItIsGood) {
  const LogRecorder lines;
  Ranks ranks(watching(ValueCheck::kWarn));
  ranks.run_ok([](Group& group) {
    for (const bool bad : {false, true, true, false, true}) {
      std::vector<float> data(100, 1.0f);
      if (bad && group.rank() == 2) data[7] = std::numeric_limits<float>::infinity();
      group.run(reduction(data));
      EXPECT_EQ(std::isfinite(data[7]), !bad);
    }
  });
  EXPECT_EQ(lines.count("all_reduce #1 .* on rank 2: element 7 of the input is infinite"), 1u) << lines.text();
  EXPECT_EQ(lines.count("all_reduce #4 .* on rank 2: element 7 of the input is infinite"), 1u) << lines.text();
  EXPECT_EQ(lines.count("input is"), 2u) << lines.text();
}

TEST(ValueChecks, LookAtReductionsOnly) {
  Ranks ranks(watching(ValueCheck::kRaise));
  ranks.run_ok([](Group& group) {
    std::vector<float> data(3, std::numeric_limits<float>::quiet_NaN());
    group.run(reduction(data, Operation::kBroadcast));
  });
}

}  // namespace
}  // namespace atl::test
