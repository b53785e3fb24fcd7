// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atl {

namespace {

#if defined(__x86_64__)
constexpr std::size_t kSmall = 1024;  // below this size memcpy's own vector code is as fast and needs no alignment

// Copies up to the first aligned line of `to`: an unaligned store that crosses a line costs two.
std::size_t copy_head(std::byte* to, const std::byte* from) noexcept {
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
  std::memcpy(to, from, head);
  return head;
}

template <bool kStreaming>
__attribute__((target("avx512f"))) void copy_avx512(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::size_t at = copy_head(to, from);
  const auto store = [to](std::size_t where, __m512i value) __attribute__((target("avx512f"), always_inline)) {
    auto* const out = reinterpret_cast<__m512i*>(to + where);
    kStreaming ? _mm512_stream_si512(out, value) : _mm512_store_si512(out, value);
  };
  for (; at + 256 <= bytes; at += 256) {
    const __m512i a = _mm512_loadu_si512(from + at);
    const __m512i b = _mm512_loadu_si512(from + at + 64);
    const __m512i c = _mm512_loadu_si512(from + at + 128);
    const __m512i d = _mm512_loadu_si512(from + at + 192);
    store(at, a);
    store(at + 64, b);
    store(at + 128, c);
    store(at + 192, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  if (kStreaming) _mm_sfence();
}

template <bool kStreaming>
__attribute__((target("avx2"))) void copy_avx2(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::size_t at = copy_head(to, from);
  const auto store = [to](std::size_t where, __m256i value) __attribute__((target("avx2"), always_inline)) {
    auto* const out = reinterpret_cast<__m256i*>(to + where);
    kStreaming ? _mm256_stream_si256(out, value) : _mm256_store_si256(out, value);
  };
  for (; at + 128 <= bytes; at += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + at);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    store(at, a);
    store(at + 32, b);
    store(at + 64, c);
    store(at + 96, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  if (kStreaming) _mm_sfence();
}

void copy_plain(std::byte* to, const std::byte* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }

using CopyFunction = void (*)(std::byte*, const std::byte*, std::size_t) noexcept;

template <bool kStreaming>
CopyFunction best_copy() noexcept {
  if (__builtin_cpu_supports("avx512f")) return copy_avx512<kStreaming>;
  if (__builtin_cpu_supports("avx2")) return copy_avx2<kStreaming>;
  return copy_plain;
}

template <bool kStreaming>
void copy_by_best(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  static const CopyFunction copy = best_copy<kStreaming>();
  if (bytes >= kSmall) return copy(to, from, bytes);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#else
template <bool kStreaming>
void copy_by_best(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#endif

}  // namespace

void copy_bytes_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
  copy_by_best<true>(destination, source, bytes);
}

void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
  copy_by_best<false>(destination, source, bytes);
}

}  // namespace atl
