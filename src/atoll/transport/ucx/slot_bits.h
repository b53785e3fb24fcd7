// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/transport/frame.h"

namespace atl::transport::ucx {

/// One bit for every place in a ring where a frame may begin. One thread.
class SlotBits {
 public:
  explicit SlotBits(std::size_t window_bytes = 0)
      : mask_(window_bytes / kSlotBytes - 1), words_(window_bytes / kSlotBytes / 64) {}

  bool test(std::uint64_t position) const noexcept { return (words_[word(position)] & bit(position)) != 0; }
  void set(std::uint64_t position) noexcept { words_[word(position)] |= bit(position); }

  /// Clears the bit; returns whether it was set.
  bool take(std::uint64_t position) noexcept {
    const bool was_set = test(position);
    words_[word(position)] &= ~bit(position);
    return was_set;
  }

 private:
  static constexpr std::size_t kSlotBytes = sizeof(FrameHeader);
  std::uint64_t slot(std::uint64_t position) const noexcept { return (position / kSlotBytes) & mask_; }
  std::size_t word(std::uint64_t position) const noexcept { return static_cast<std::size_t>(slot(position) / 64); }
  std::uint64_t bit(std::uint64_t position) const noexcept { return std::uint64_t{1} << (slot(position) % 64); }

  std::uint64_t mask_;
  std::vector<std::uint64_t> words_;
};

}  // namespace atl::transport::ucx
