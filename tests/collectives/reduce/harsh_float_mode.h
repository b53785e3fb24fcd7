// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atl::collectives {

/// For its lifetime the thread rounds upward and, on the processors that are known here, treats subnormals as zero, as
/// a program may have set it.
class HarshFloatMode {
 public:
  HarshFloatMode() : saved_(read()) { write(saved_ | kHarsh); }
  ~HarshFloatMode() { write(saved_); }
  HarshFloatMode(const HarshFloatMode&) = delete;
  HarshFloatMode& operator=(const HarshFloatMode&) = delete;

  /// Returns whether the mode is still as it was set.
  bool is_kept() const { return (read() & ~kFlags) == ((saved_ | kHarsh) & ~kFlags); }

 private:
#if defined(__x86_64__)
  static constexpr unsigned kHarsh = _MM_FLUSH_ZERO_ON | 0x0040U | _MM_ROUND_UP;
  static constexpr unsigned kFlags = 0x3FU;  // what computing sets
  static unsigned read() { return _mm_getcsr(); }
  static void write(unsigned mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  static constexpr unsigned kHarsh = 1U << 24 | 1U << 22 | 1U << 19;  // FZ, RMode, FZ16
  static constexpr unsigned kFlags = 0;                               // in another register
  static unsigned read() { return __builtin_aarch64_get_fpcr(); }
  static void write(unsigned mode) { __builtin_aarch64_set_fpcr(mode); }
#else
#error "how to set this processor's modes is not known here"
#endif

  const unsigned saved_;
};

}  // namespace atl::collectives
