// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "atoll/collectives/reduce/reduce.h"

/// A second implementation of fold(): one element at a time, in double and 128-bit integer arithmetic, without the
/// library's conversions.
namespace atl::collectives::reference {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool saturates;
  std::uint32_t nan;
};

inline FloatFormat format_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16: return {5, 10, false, 0x7E00};
    case DataType::kBFloat16: return {8, 7, false, 0x7FC0};
    case DataType::kFloat8E4M3: return {4, 3, true, 0x7F};
    default: return {5, 2, false, 0x7F};
  }
}

inline bool is_narrow(DataType dtype) { return dtype >= DataType::kFloat16 && dtype <= DataType::kFloat8E5M2; }
inline bool is_complex(DataType dtype) { return dtype >= DataType::kComplex64; }
inline bool is_integer(DataType dtype) { return dtype >= DataType::kInt8 && dtype <= DataType::kUInt8; }
inline bool is_double(DataType dtype) { return dtype == DataType::kFloat64 || dtype == DataType::kComplex128; }

inline double decode_narrow(const FloatFormat& format, std::uint32_t code) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const std::uint32_t mantissa = code & ((1U << format.mantissa_bits) - 1);
  const double sign = (code >> (format.exponent_bits + format.mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    if (!format.saturates && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
    if (!format.saturates || mantissa == (1U << format.mantissa_bits) - 1)
      return std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  return sign * std::ldexp(fraction, (exponent == 0 ? 1 : exponent) - bias - format.mantissa_bits);
}

/// Rounds to nearest, ties to even. `value` is a float, so that every step but nearbyint is exact in double.
inline std::uint32_t encode_narrow(const FloatFormat& format, double value) {
  if (std::isnan(value)) return format.nan;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const std::uint32_t sign = std::signbit(value) ? 1U << (format.exponent_bits + format.mantissa_bits) : 0;
  const std::uint32_t top = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint32_t largest = format.saturates ? format.nan - 1 : top;
  if (std::isinf(value)) return sign | largest;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  // 2^mantissa_bits for the smallest value of this exponent; rounding up to the next exponent carries into the code.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent));
  const double code = units + std::ldexp(exponent + bias - 1, format.mantissa_bits);
  return sign | (code > largest ? largest : static_cast<std::uint32_t>(code));
}

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline double read_real(DataType dtype, const std::byte* from) {
  if (is_double(dtype)) return read<double>(from);
  if (!is_narrow(dtype)) return read<float>(from);
  return decode_narrow(format_of(dtype), size_of(dtype) == 1 ? read<std::uint8_t>(from) : read<std::uint16_t>(from));
}

inline void write_real(DataType dtype, std::byte* to, double value) {
  if (is_narrow(dtype)) {
    const std::uint32_t code = encode_narrow(format_of(dtype), value);
    return size_of(dtype) == 1 ? write(to, static_cast<std::uint8_t>(code))
                               : write(to, static_cast<std::uint16_t>(code));
  }
  if (is_double(dtype)) return std::isnan(value) ? write(to, 0x7FF8000000000000ULL) : write(to, value);
  std::isnan(value) ? write(to, 0x7FC00000U) : write(to, static_cast<float>(value));
}

/// Rounds a sum, product or quotient of two floats: rounding it to double first changes nothing. It must not be
/// contracted with what comes next, whatever the compiler's flags.
inline double rounded(DataType dtype, double value) {
  volatile double alone = value;
  return is_double(dtype) ? alone : static_cast<double>(static_cast<float>(alone));
}

inline double combine_real(const Fold& how, double a, double b) {
  switch (how.op) {
    case ReduceOp::kProduct: return rounded(how.dtype, a * b);
    case ReduceOp::kMin: return std::isnan(a) || std::isnan(b) ? NAN : (b < a ? b : a);
    case ReduceOp::kMax: return std::isnan(a) || std::isnan(b) ? NAN : (b > a ? b : a);
    default: return rounded(how.dtype, a + b);
  }
}

struct Complex {
  double real;
  double imaginary;
};

inline Complex product(DataType dtype, Complex a, Complex b) {
  const auto times = [dtype](double x, double y) { return rounded(dtype, x * y); };
  return {rounded(dtype, times(a.real, b.real) - times(a.imaginary, b.imaginary)),
          rounded(dtype, times(a.real, b.imaginary) + times(a.imaginary, b.real))};
}

/// Folds one element, at which `sources` point. Real types have no imaginary part.
inline void fold_floating(const Fold& how, const std::vector<const std::byte*>& sources, std::byte* to) {
  const std::size_t part = is_complex(how.dtype) ? size_of(how.dtype) / 2 : 0;
  const bool multiply = how.op == ReduceOp::kPremulSum && how.premultiply;
  const bool divide = how.op == ReduceOp::kAvg && how.divisor > 1;
  if (sources.size() == 1 && !multiply && !divide) {
    std::memcpy(to, sources[0], size_of(how.dtype));
    return;
  }
  const double factor = rounded(how.dtype, how.factor);
  const double divisor = rounded(how.dtype, static_cast<double>(how.divisor));
  Complex folded{};
  for (std::size_t source = 0; source < sources.size(); ++source) {
    Complex x{read_real(how.dtype, sources[source]), part != 0 ? read_real(how.dtype, sources[source] + part) : 0};
    if (multiply) x = {rounded(how.dtype, x.real * factor), rounded(how.dtype, x.imaginary * factor)};
    if (source == 0) {
      folded = x;
    } else if (part != 0 && how.op == ReduceOp::kProduct) {
      folded = product(how.dtype, folded, x);
    } else {
      folded = {combine_real(how, folded.real, x.real), combine_real(how, folded.imaginary, x.imaginary)};
    }
  }
  if (divide) folded = {rounded(how.dtype, folded.real / divisor), rounded(how.dtype, folded.imaginary / divisor)};
  write_real(how.dtype, to, folded.real);
  if (part != 0) write_real(how.dtype, to + part, folded.imaginary);
}

inline std::int64_t wrapped(DataType dtype, __int128 value) {
  switch (dtype) {
    case DataType::kInt8: return static_cast<std::int8_t>(value);
    case DataType::kInt16: return static_cast<std::int16_t>(value);
    case DataType::kInt32: return static_cast<std::int32_t>(value);
    case DataType::kUInt8: return static_cast<std::uint8_t>(value);
    default: return static_cast<std::int64_t>(value);
  }
}

inline std::int64_t combine_integer(const Fold& how, std::int64_t a, std::int64_t b) {
  switch (how.op) {
    case ReduceOp::kProduct: return wrapped(how.dtype, static_cast<__int128>(a) * b);
    case ReduceOp::kMin: return b < a ? b : a;
    case ReduceOp::kMax: return b > a ? b : a;
    case ReduceOp::kBand: return a & b;
    case ReduceOp::kBor: return a | b;
    case ReduceOp::kBxor: return a ^ b;
    default: return wrapped(how.dtype, static_cast<__int128>(a) + b);
  }
}

inline void fold_integer(const Fold& how, const std::vector<const std::byte*>& sources, std::byte* to) {
  std::int64_t folded = 0;
  for (std::size_t source = 0; source < sources.size(); ++source) {
    __int128 x = 0;
    std::memcpy(&x, sources[source], size_of(how.dtype));
    x = wrapped(how.dtype, x);
    if (how.op == ReduceOp::kPremulSum && how.premultiply) x *= static_cast<__int128>(how.factor);
    folded = source == 0 ? wrapped(how.dtype, x) : combine_integer(how, folded, wrapped(how.dtype, x));
  }
  if (how.op == ReduceOp::kAvg && how.divisor > 1) folded /= how.divisor;
  std::memcpy(to, &folded, size_of(how.dtype));
}

inline void fold_bool(const Fold& how, const std::vector<const std::byte*>& sources, std::byte* to) {
  std::size_t trues = 0;
  for (const std::byte* source : sources) trues += *source != std::byte{0} ? 1 : 0;
  bool result = trues != 0;
  if (how.op == ReduceOp::kProduct || how.op == ReduceOp::kMin || how.op == ReduceOp::kBand)
    result = trues == sources.size();
  if (how.op == ReduceOp::kBxor) result = trues % 2 != 0;
  *to = static_cast<std::byte>(result);
}

inline std::vector<std::byte> fold(const Fold& how, const std::vector<const std::byte*>& sources, std::size_t count) {
  const std::size_t size = size_of(how.dtype);
  std::vector<std::byte> result(count * size);
  std::vector<const std::byte*> element(sources.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t source = 0; source < sources.size(); ++source) element[source] = sources[source] + i * size;
    if (how.dtype == DataType::kBool) {
      fold_bool(how, element, &result[i]);
    } else if (is_integer(how.dtype)) {
      fold_integer(how, element, &result[i * size]);
    } else {
      fold_floating(how, element, &result[i * size]);
    }
  }
  return result;
}

}  // namespace atl::collectives::reference
