// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The floating-point mode of the calling thread, as its processor holds it.
namespace atl::collectives::detail {

#if defined(__x86_64__)
inline constexpr unsigned kFlushesSubnormals = _MM_FLUSH_ZERO_MASK | 0x0040U;  // results, and operands
inline constexpr unsigned kModeDeviations = kFlushesSubnormals | _MM_ROUND_MASK;
inline unsigned float_mode() noexcept { return _mm_getcsr(); }
inline void set_float_mode(unsigned mode) noexcept { _mm_setcsr(mode); }
#elif defined(__aarch64__)
inline constexpr unsigned kFlushesSubnormals = 1U << 24U;
inline constexpr unsigned kModeDeviations = 0x05C80000U;  // other float16, flush to zero twice, rounding
inline unsigned float_mode() noexcept { return static_cast<unsigned>(__builtin_aarch64_get_fpcr()); }
inline void set_float_mode(unsigned mode) noexcept { __builtin_aarch64_set_fpcr(mode); }
#else
inline constexpr unsigned kFlushesSubnormals = 0;
inline constexpr unsigned kModeDeviations = 0;
inline unsigned float_mode() noexcept { return 0; }
inline void set_float_mode(unsigned) noexcept {}
#endif

/// Sets default rounding and full subnormals for its lifetime, whatever mode the calling thread has
/// (torch.set_flush_denormal changes it); otherwise results would depend on the thread that computes them.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(float_mode()) {
    if ((saved_ & kModeDeviations) != 0) [[unlikely]]
      set_float_mode(saved_ & ~kModeDeviations);
  }
  ~DefaultFloatMode() {
    if ((saved_ & kModeDeviations) != 0) [[unlikely]]
      set_float_mode(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace atl::collectives::detail
