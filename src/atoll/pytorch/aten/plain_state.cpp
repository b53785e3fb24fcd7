// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/plain_state.h"

#include <ATen/Parallel.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace atl::pytorch {
namespace {

#if defined(__SSE__)
constexpr unsigned kFlush = 0x8040;  // flush to zero, and denormals are zero
unsigned control() { return _mm_getcsr(); }
void set_control(unsigned word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
constexpr unsigned kFlush = 1U << 24U;
unsigned control() { return static_cast<unsigned>(__builtin_aarch64_get_fpcr()); }
void set_control(unsigned word) { __builtin_aarch64_set_fpcr(word); }
#else
constexpr unsigned kFlush = 0;
unsigned control() { return 0; }
void set_control(unsigned) {}
#endif

// Runs `body` on each thread that operators of this one use, itself included.
template <typename Body>
void on_threads(std::size_t count, Body&& body) {
  at::parallel_for(0, static_cast<std::int64_t>(count), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(static_cast<std::size_t>(i));
  });
}

}  // namespace

Denormals::Denormals() {
  if ((control() & kFlush) == 0) return;
  before_.resize(static_cast<std::size_t>(at::get_num_threads()));
  on_threads(before_.size(), [this](std::size_t i) {
    before_[i] = control();
    set_control(before_[i] & ~kFlush);
  });
}

Denormals::~Denormals() {
  if (before_.empty()) return;
  on_threads(before_.size(), [this](std::size_t i) { set_control(before_[i]); });
}

}  // namespace atl::pytorch
