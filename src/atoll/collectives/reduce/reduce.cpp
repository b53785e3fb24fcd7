// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "atoll/collectives/reduce/float_mode.h"
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/core/error.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

/// Checks for exactly the extensions that reduce_avx512.cpp and reduce_avx2.cpp are compiled for.
Simd detect() noexcept {
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  // Not every compiler's __builtin_cpu_supports knows f16c.
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (!__builtin_cpu_supports("avx2") || !has_f16c) return Simd::kPlain;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? Simd::kAvx512 : Simd::kAvx2;
#else
  return Simd::kPlain;
#endif
}

[[noreturn]] void refuse(const Fold& how, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument,
              std::string("reduce: ") + to_string(how.op) + " of " + to_string(how.dtype) + " " + reason);
}

bool is_integer(DataType dtype) noexcept { return dtype >= DataType::kInt8 && dtype <= DataType::kUInt8; }

/// Returns `factor` modulo 2^64. Rejects a fraction, because rounding each product would be a surprise.
std::uint64_t whole_factor(const Fold& how) {
  if (how.factor != std::trunc(how.factor) || how.factor < -0x1p63 || how.factor >= 0x1p64) {
    refuse(how, "needs a whole factor within 64 bits, not " + std::to_string(how.factor));
  }
  if (how.factor < 0) return static_cast<std::uint64_t>(static_cast<std::int64_t>(how.factor));
  return static_cast<std::uint64_t>(how.factor);
}

void fold_by(const detail::Kernels& kernels, const Fold& how, std::span<const std::byte* const> sources,
             std::byte* destination, std::size_t count) {
  const auto dtype = static_cast<std::size_t>(how.dtype);
  auto op = static_cast<std::size_t>(how.op);
  if (dtype >= kDataTypeCount || op >= kReduceOpCount || kernels.folds[dtype][op] == nullptr)
    refuse(how, "is not defined");
  if (sources.empty()) refuse(how, "needs at least one source");

  detail::Parameters parameters;
  bool is_plain = true;
  if (how.op == ReduceOp::kPremulSum) {
    is_plain = !how.premultiply;
    parameters.factor = how.factor;
    if (!is_plain && is_integer(how.dtype)) parameters.integer_factor = whole_factor(how);
    if (is_plain) op = static_cast<std::size_t>(ReduceOp::kSum);
  } else if (how.op == ReduceOp::kAvg) {
    if (how.divisor < 0) refuse(how, "needs a positive divisor, not " + std::to_string(how.divisor));
    is_plain = how.divisor < 2;
    parameters.divisor = is_plain ? 1 : how.divisor;
    if (is_plain) op = static_cast<std::size_t>(ReduceOp::kSum);
  }

  if (count == 0) return;
  const std::size_t bytes = count * size_of(how.dtype);
  if (sources.size() == 1 && is_plain && how.dtype != DataType::kBool) {
    if (sources[0] != destination) std::memcpy(destination, sources[0], bytes);
    return;
  }
  const detail::DefaultFloatMode mode;
  kernels.folds[dtype][op](sources.data(), sources.size(), destination, bytes, parameters);
}

constexpr std::size_t kBlock = 2048;  // elements scanned between two checks for a hit

// A value is not finite if all bits of `exponent` are set, and it is NaN if a bit of `fraction` is set too.
template <typename Bits>
std::optional<NotFinite> scan(std::span<const std::byte> data, Bits exponent, Bits fraction) {
  const std::size_t count = data.size() / sizeof(Bits);
  Bits block[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::memcpy(block, data.data() + begin * sizeof(Bits), size * sizeof(Bits));
    Bits bad = 0;
    for (std::size_t i = 0; i < size; ++i) bad |= static_cast<Bits>((block[i] & exponent) == exponent);
    if (!bad) continue;
    const auto* first = std::find_if(block, block + size, [&](Bits bits) { return (bits & exponent) == exponent; });
    return NotFinite{begin + static_cast<std::size_t>(first - block), (*first & fraction) != 0};
  }
  return std::nullopt;
}

std::optional<NotFinite> halved(std::optional<NotFinite> part) {
  if (part) part->index /= 2;
  return part;
}

std::optional<NotFinite> scan_float(std::span<const std::byte> data) {
  return scan<std::uint32_t>(data, 0x7f800000U, 0x007fffffU);
}

std::optional<NotFinite> scan_double(std::span<const std::byte> data) {
  return scan<std::uint64_t>(data, 0x7ff0000000000000ULL, 0x000fffffffffffffULL);
}

}  // namespace

namespace detail {

const Kernels& kernels_of([[maybe_unused]] Simd simd) noexcept {
#if defined(__x86_64__)
  if (simd == Simd::kAvx512) return avx512_kernels();
  if (simd == Simd::kAvx2) return avx2_kernels();
#endif
  return plain_kernels();
}

Simd machine_simd() noexcept {
  static const Simd machine = detect();  // once: virtual machines take microseconds for a cpuid instruction
  return machine;
}

std::optional<Simd> choose_simd(const char* requested, Simd machine) noexcept {
  if (requested == nullptr || *requested == '\0') return machine;
  for (const Simd simd : {Simd::kPlain, Simd::kAvx2, Simd::kAvx512}) {
    if (std::string_view(requested) == to_string(simd)) return simd < machine ? simd : machine;
  }
  return std::nullopt;
}

}  // namespace detail

void fold(const Fold& how, std::span<const std::byte* const> sources, std::byte* destination, std::size_t count) {
  static const detail::Kernels& kernels = detail::kernels_of(best_simd());
  fold_by(kernels, how, sources, destination, count);
}

void fold_with(Simd simd, const Fold& how, std::span<const std::byte* const> sources, std::byte* destination,
               std::size_t count) {
  if (simd > detail::machine_simd()) {
    throw Error(ErrorKind::kUnavailable, std::string("reduce: this machine does not support ") + to_string(simd));
  }
  fold_by(detail::kernels_of(simd), how, sources, destination, count);
}

Simd best_simd() noexcept {
  static const Simd best = [] {
    const Simd machine = detail::machine_simd();
    const std::optional<Simd> chosen = detail::choose_simd(std::getenv("ATOLL_SIMD"), machine);
    if (!chosen) log(LogLevel::kWarning, "ATOLL_SIMD must be plain, avx2 or avx512; it is ignored");
    return chosen.value_or(machine);
  }();
  return best;
}

const char* to_string(Simd simd) noexcept {
  static constexpr std::array kNames{"plain", "avx2", "avx512"};
  return entry_of(kNames, simd, "unknown");
}

std::optional<NotFinite> find_not_finite(DataType dtype, std::span<const std::byte> data) noexcept {
  switch (dtype) {
    case DataType::kFloat64: return scan_double(data);
    case DataType::kFloat32: return scan_float(data);
    case DataType::kFloat16: return scan<std::uint16_t>(data, 0x7c00, 0x03ff);
    case DataType::kBFloat16: return scan<std::uint16_t>(data, 0x7f80, 0x007f);
    case DataType::kFloat8E4M3: return scan<std::uint8_t>(data, 0x7f, 0x7f);  // this format has no infinities
    case DataType::kFloat8E5M2: return scan<std::uint8_t>(data, 0x7c, 0x03);
    case DataType::kComplex64: return halved(scan_float(data));
    case DataType::kComplex128: return halved(scan_double(data));
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
    case DataType::kBool: break;
  }
  return std::nullopt;
}

}  // namespace atl::collectives
