// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace atl::transport {

/// Copies payloads into a ring whose lines another core has just read, in the way that proves cheaper here: through the cache, which is best where the
/// cores share one, or past it, which is several times faster where they do not. Which it is cannot be asked of a virtual machine and may
/// change while it runs, so each kind's cost per byte is measured now and then. One thread.
class RingCopy {
 public:
  void operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

 private:
  enum Kind : std::size_t { kCached, kStreaming };
  Kind choose() noexcept;

  std::array<double, 2> cost_{};  // nanoseconds per byte, smoothed; 0: not measured yet
  std::uint32_t copies_ = 0;
};

}  // namespace atl::transport
