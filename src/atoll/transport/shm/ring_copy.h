// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace atl::transport {

/// Copies payloads into a ring whose lines another core has just read, in the way that proves cheaper here: through the
/// cache, which is best where the cores share one, or past it, which is several times faster where they do not. Which it
/// is cannot be asked of a virtual machine and may change while it runs, so the cost per byte of the kind in use is
/// always measured, and that of the other one in a trial now and then. One thread.
class RingCopy {
 public:
  explicit RingCopy(std::size_t window_bytes) noexcept : window_bytes_(window_bytes) {}

  void operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

 private:
  enum Kind : std::size_t { kCached, kStreaming };
  Kind choose() const noexcept;

  const std::size_t window_bytes_;
  std::array<double, 2> cost_{};     // nanoseconds per byte, smoothed; 0: not measured yet
  Kind kind_ = kCached;              // of the last copy
  std::uint64_t bytes_of_kind_ = 0;  // copied since the kind last changed
};

}  // namespace atl::transport
