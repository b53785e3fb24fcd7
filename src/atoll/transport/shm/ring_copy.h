// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace atl::transport {

/// Copies payloads into a ring whose lines another core has just read, in whichever way is measured to be cheaper:
/// through the cache, which is best if the cores share one, or past it, which is several times faster if they do not. A
/// virtual machine does not report which is the case, and it may change while it runs, so the cost per byte of the
/// current kind is measured all the time, and that of the other one in an occasional trial. One thread.
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
