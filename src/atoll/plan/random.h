// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace atl::plan {

/// Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the random numbers
/// are a function of a counter and a key, so every platform gives the same ones.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept;

/// What random numbers are drawn for. Streams of different purposes do not overlap.
enum class Purpose : std::uint32_t { kPermutation = 1, kDraw = 2, kShares = 3, kChoice = 4 };

/// One stream of random numbers, named by seed, epoch and purpose.
class Random {
 public:
  /// Throws Error(kInvalidArgument) for an epoch outside [0, 2^56).
  Random(std::uint64_t seed, std::int64_t epoch, Purpose purpose);

  std::uint32_t next() {
    if (used_ == block_.size()) refill();
    return block_[used_++];
  }
  std::uint64_t next_long() {
    const std::uint64_t low = next();
    return std::uint64_t{next()} << 32 | low;
  }
  /// Uniform in [0, bound), bound > 0, without bias (Lemire, "Fast random integer generation in an interval", 2019).
  std::uint64_t below(std::uint64_t bound) {
    return bound <= UINT32_MAX ? below_short(static_cast<std::uint32_t>(bound)) : below_long(bound);
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double unit() { return static_cast<double>(next_long() >> 11) * 0x1p-53; }

 private:
  void refill() noexcept;

  std::uint64_t below_short(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{next()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t threshold = (0U - bound) % bound;
      while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * bound;
    }
    return product >> 32;
  }
  std::uint64_t below_long(std::uint64_t bound);

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

/// Returns 0 ... size - 1 in random order (Fisher-Yates). The order depends on the arguments alone, on every platform
/// and in every version, so ranks need not exchange it. Throws Error(kInvalidArgument) for a negative size or epoch.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

/// Draws `count` indices of `weights` with replacement, with probabilities proportional to the weights. They must be
/// finite, at least 0, and not all 0.
std::vector<std::int64_t> draw(std::span<const double> weights, std::int64_t count, std::uint64_t seed,
                               std::int64_t epoch);

}  // namespace atl::plan
