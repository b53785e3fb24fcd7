// SPDX-License-Identifier: Apache-2.0
// Every dtype, operation, instruction set, number of sources, size, alignment and place of the result, bit for bit
// against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "tests/collectives/reduce/reduce_reference.h"
#include "tests/collectives/reduce/reduce_support.h"

namespace atl::collectives {
namespace {

constexpr std::size_t kSweepCounts[] = {0, 1, 2, 3, 7, 15, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 4097};
constexpr std::size_t kMaxCount = 4097;
constexpr std::size_t kMaxSources = 9;
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kUntouched{0xA5};

/// Fills half of the elements with arbitrary bits, including NaN, infinities, subnormals and extremes, and half with
/// values of ordinary size.
std::vector<std::byte> random_array(DataType dtype, std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const bool is_floating = !reference::is_integer(dtype) && dtype != DataType::kBool;
  const std::size_t part = reference::is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
  for (std::size_t at = 0; at < bytes.size(); at += part) {
    if (dtype == DataType::kBool && random() % 4 != 0) bytes[at] &= std::byte{1};
    if (!is_floating || random() % 2 == 0) continue;
    constexpr double kValues[] = {0.0, -0.0, 1.0, -1.0};
    const double value = random() % 8 == 0 ? kValues[random() % 4] : static_cast<std::int32_t>(random()) * 0x1p-30;
    reference::write_real(dtype, &bytes[at], reference::is_double(dtype) ? value : static_cast<float>(value));
  }
  return bytes;
}

struct Variant {
  Fold how;
  std::string name;
};

std::vector<Variant> variants(DataType dtype) {
  std::vector<Variant> all;
  const auto add = [&all, dtype](ReduceOp op, bool premultiply, double factor, std::int64_t divisor) {
    if (!is_supported(op, dtype)) return;
    const std::string scalars =
        (premultiply ? " by " + std::to_string(factor) : "") + " over " + std::to_string(divisor);
    all.push_back({{.dtype = dtype, .op = op, .premultiply = premultiply, .factor = factor, .divisor = divisor},
                   std::string(to_string(dtype)) + " " + to_string(op) + scalars});
  };
  for (int op = 0; op < kReduceOpCount; ++op) add(static_cast<ReduceOp>(op), false, 1, 0);
  for (const std::int64_t divisor : {4, 7, 1000}) add(ReduceOp::kAvg, false, 1, divisor);
  for (const double factor : {3.0, -0x1p40}) add(ReduceOp::kPremulSum, true, factor, 0);
  if (!reference::is_integer(dtype)) add(ReduceOp::kPremulSum, true, 0.1, 0);
  return all;
}

class ReduceSweep : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::mt19937 random(static_cast<std::uint32_t>(GetParam()) + 7);
    for (std::size_t source = 0; source < kMaxSources; ++source)
      arrays_.push_back(random_array(dtype(), kMaxCount, random));
  }

  DataType dtype() const { return static_cast<DataType>(GetParam()); }

  /// Puts source k at a misalignment that depends on k (none when `shift` is 0).
  void place(std::size_t shift) {
    placed_.assign(kMaxSources, std::vector<std::byte>(kMaxCount * size_of(dtype()) + 2 * kGuardBytes));
    addresses_.clear();
    for (std::size_t source = 0; source < kMaxSources; ++source) {
      std::byte* const at = aligned(placed_[source]) + (shift * (source + 1)) % kGuardBytes;
      std::memcpy(at, arrays_[source].data(), arrays_[source].size());
      addresses_.push_back(at);
    }
    shift_ = shift;
  }

  /// `same` is the source that the result replaces, or negative for none. Returns a description of the difference, or
  /// "".
  std::string check(Simd simd, const Fold& how, std::size_t source_count, std::size_t count, int same,
                    const std::vector<std::byte>& expected) {
    const std::size_t bytes = count * size_of(how.dtype);
    result_.assign(bytes + 4 * kGuardBytes, kUntouched);
    std::byte* const to = aligned(result_) + (same < 0 ? shift_ : (shift_ * (same + 1)) % kGuardBytes);
    std::vector<const std::byte*> sources(addresses_.begin(),
                                          addresses_.begin() + static_cast<std::ptrdiff_t>(source_count));
    if (same >= 0) {
      std::memcpy(to, sources[same], bytes);
      sources[same] = to;
    }
    fold_with(simd, how, sources, to, count);
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    if (std::memcmp(to, expected.data(), bytes) != 0) {
      const auto [found, wanted] = std::mismatch(to, to + bytes, expected.begin());
      return "byte " + std::to_string(found - to) + " is " + std::to_string(static_cast<int>(*found)) + ", not " +
             std::to_string(static_cast<int>(*wanted));
    }
    if (!std::all_of(result_.data(), to, untouched) ||
        !std::all_of(to + bytes, result_.data() + result_.size(), untouched)) {
      return "wrote outside";
    }
    return "";
  }

 private:
  static std::byte* aligned(std::vector<std::byte>& memory) {
    return memory.data() + (kGuardBytes - reinterpret_cast<std::uintptr_t>(memory.data()) % kGuardBytes) % kGuardBytes;
  }

 protected:
  std::vector<std::vector<std::byte>> arrays_;
  std::vector<std::vector<std::byte>> placed_;
  std::vector<const std::byte*> addresses_;
  std::vector<std::byte> result_;
  std::size_t shift_ = 0;
};

// Proves C-3.
TEST_P(ReduceSweep, EqualsTheReference) {
  const std::vector<Variant> all = variants(dtype());
  std::vector<std::vector<std::byte>> expected;
  place(0);
  for (const Variant& variant : all) {
    for (std::size_t source_count = 1; source_count <= kMaxSources; ++source_count) {
      expected.push_back(reference::fold(
          variant.how, {addresses_.begin(), addresses_.begin() + static_cast<std::ptrdiff_t>(source_count)},
          kMaxCount));
    }
  }
  const auto run = [&](Simd simd, std::size_t shift) {
    for (std::size_t v = 0; v < all.size(); ++v) {
      for (std::size_t source_count = 1; source_count <= kMaxSources; ++source_count) {
        for (const std::size_t count : kSweepCounts) {
          for (int same = -1; same < static_cast<int>(source_count); ++same) {
            const std::string wrong =
                check(simd, all[v].how, source_count, count, same, expected[v * kMaxSources + source_count - 1]);
            ASSERT_EQ(wrong, "") << all[v].name << " " << to_string(simd) << " sources " << source_count << " count "
                                 << count << " shift " << shift << " in place of source " << same;
          }
        }
      }
    }
  };
  for (const std::size_t shift : {std::size_t{0}, size_of(dtype()), std::size_t{1}}) {
    place(shift);
    for (const Simd simd : simds()) {
      ASSERT_NO_FATAL_FAILURE(run(simd, shift));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ReduceSweep, ::testing::Range(0, kDataTypeCount),
                         [](const auto& param) { return to_string(static_cast<DataType>(param.param)); });

/// Combines all codes with many others, scaled so that every kind of rounding occurs.
class ReduceNarrow : public ::testing::TestWithParam<DataType> {};

TEST_P(ReduceNarrow, EveryCodeEqualsTheReference) {
  const DataType dtype = GetParam();
  const std::size_t size = size_of(dtype);
  const std::uint32_t codes = 1U << (8 * size);
  std::vector<std::byte> every(codes * size);
  std::vector<std::byte> other(codes * size);
  for (std::uint32_t code = 0; code < codes; ++code) std::memcpy(&every[code * size], &code, size);
  const std::vector<const std::byte*> sources{every.data(), other.data()};
  std::vector<std::byte> result(every.size());
  std::mt19937 random(11);
  for (int round = 0; round < (size == 1 ? 256 : 24); ++round) {
    const std::uint32_t partner =
        size == 1 ? static_cast<std::uint32_t>(round) : static_cast<std::uint32_t>(random()) & 0xFFFFU;
    for (std::uint32_t code = 0; code < codes; ++code) std::memcpy(&other[code * size], &partner, size);
    const double factor = std::ldexp(1 + static_cast<double>(random()) * 0x1p-32, static_cast<int>(random() % 16) - 12);
    for (const Fold& how : {Fold{.dtype = dtype}, Fold{.dtype = dtype, .op = ReduceOp::kProduct},
                            Fold{.dtype = dtype, .op = ReduceOp::kPremulSum, .premultiply = true, .factor = factor}}) {
      const auto expected = reference::fold(how, sources, codes);
      for (const Simd simd : simds()) {
        fold_with(simd, how, sources, result.data(), codes);
        ASSERT_EQ(result, expected) << to_string(simd) << " " << to_string(how.op) << " partner " << partner;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ReduceNarrow,
                         ::testing::Values(DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E4M3,
                                           DataType::kFloat8E5M2),
                         [](const auto& param) { return to_string(param.param); });

}  // namespace
}  // namespace atl::collectives
