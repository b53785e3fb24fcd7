// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atl::collectives::detail {

/// Sets default rounding and full subnormals for its lifetime, whatever mode the calling thread has
/// (torch.set_flush_denormal changes it); otherwise results would depend on the thread that computes them.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(read()) {
    if ((saved_ & kDeviations) != 0) [[unlikely]]
      write(saved_ & ~kDeviations);
  }
  ~DefaultFloatMode() {
    if ((saved_ & kDeviations) != 0) [[unlikely]]
      write(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDeviations =
      _MM_FLUSH_ZERO_MASK | _MM_ROUND_MASK | 0x0040U;  // the last: subnormals are zero
  static unsigned read() noexcept { return _mm_getcsr(); }
  static void write(unsigned mode) noexcept { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  static constexpr unsigned kDeviations = 0x05C80000U;  // other float16, flush to zero twice, rounding
  static unsigned read() noexcept { return __builtin_aarch64_get_fpcr(); }
  static void write(unsigned mode) noexcept { __builtin_aarch64_set_fpcr(mode); }
#else
  static constexpr unsigned kDeviations = 0;
  static unsigned read() noexcept { return 0; }
  static void write(unsigned) noexcept {}
#endif

  unsigned saved_;
};

}  // namespace atl::collectives::detail
