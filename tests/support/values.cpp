// SPDX-License-Identifier: Apache-2.0
#include "tests/support/values.h"

#include <cmath>
#include <cstring>
#include <random>

namespace atl::test {
namespace {

using collectives::DataType;
using collectives::ReduceOp;

struct Format {
  int exponent_bits;
  int mantissa_bits;
};

bool narrow_format(DataType dtype, Format& format) {
  switch (dtype) {
    case DataType::kFloat16: format = {5, 10}; return true;
    case DataType::kBFloat16: format = {8, 7}; return true;
    case DataType::kFloat8E4M3: format = {4, 3}; return true;
    case DataType::kFloat8E5M2: format = {5, 2}; return true;
    default: return false;
  }
}

double decode_narrow(std::uint32_t bits, Format format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1));
  const bool negative = (bits >> (format.mantissa_bits + format.exponent_bits)) & 1u;
  const double fraction = mantissa / static_cast<double>(1u << format.mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return negative ? -magnitude : magnitude;
}

// Exact values only: tries every code of the 8-bit formats, and computes the 16-bit formats directly.
std::uint32_t encode_narrow(double value, Format format) {
  if (value == 0) return 0;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent) * 2 - 1;
  const auto mantissa = static_cast<std::uint32_t>(fraction * (1u << format.mantissa_bits));
  const auto sign = value < 0 ? 1u : 0u;
  return (sign << (format.exponent_bits + format.mantissa_bits)) |
         (static_cast<std::uint32_t>(exponent - 1 + bias) << format.mantissa_bits) | mantissa;
}

template <typename T>
void put(std::byte* out, std::size_t index, T value) {
  std::memcpy(out + index * sizeof(T), &value, sizeof(T));
}
template <typename T>
double take(const std::byte* in, std::size_t index) {
  T value;
  std::memcpy(&value, in + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

}  // namespace

std::vector<std::byte> encode(DataType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * collectives::size_of(dtype));
  Format format{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = values[i];
    if (narrow_format(dtype, format)) {
      const auto bits = encode_narrow(v, format);
      collectives::size_of(dtype) == 2 ? put(bytes.data(), i, static_cast<std::uint16_t>(bits))
                                       : put(bytes.data(), i, static_cast<std::uint8_t>(bits));
      continue;
    }
    switch (dtype) {
      case DataType::kFloat64: put(bytes.data(), i, v); break;
      case DataType::kFloat32: put(bytes.data(), i, static_cast<float>(v)); break;
      case DataType::kInt8: put(bytes.data(), i, static_cast<std::int8_t>(v)); break;
      case DataType::kInt16: put(bytes.data(), i, static_cast<std::int16_t>(v)); break;
      case DataType::kInt32: put(bytes.data(), i, static_cast<std::int32_t>(v)); break;
      case DataType::kInt64: put(bytes.data(), i, static_cast<std::int64_t>(v)); break;
      case DataType::kUInt8: put(bytes.data(), i, static_cast<std::uint8_t>(v)); break;
      case DataType::kBool: put(bytes.data(), i, static_cast<std::uint8_t>(v != 0)); break;
      case DataType::kComplex64: put(bytes.data(), 2 * i, static_cast<float>(v)); break;
      case DataType::kComplex128: put(bytes.data(), 2 * i, v); break;
      default: break;
    }
  }
  return bytes;
}

std::vector<double> decode(DataType dtype, const std::byte* data, std::size_t count) {
  std::vector<double> values(count);
  Format format{};
  for (std::size_t i = 0; i < count; ++i) {
    if (narrow_format(dtype, format)) {
      values[i] =
          decode_narrow(static_cast<std::uint32_t>(collectives::size_of(dtype) == 2 ? take<std::uint16_t>(data, i)
                                                                                    : take<std::uint8_t>(data, i)),
                        format);
      continue;
    }
    switch (dtype) {
      case DataType::kFloat64: values[i] = take<double>(data, i); break;
      case DataType::kFloat32: values[i] = take<float>(data, i); break;
      case DataType::kInt8: values[i] = take<std::int8_t>(data, i); break;
      case DataType::kInt16: values[i] = take<std::int16_t>(data, i); break;
      case DataType::kInt32: values[i] = take<std::int32_t>(data, i); break;
      case DataType::kInt64: values[i] = take<std::int64_t>(data, i); break;
      case DataType::kUInt8:
      case DataType::kBool: values[i] = take<std::uint8_t>(data, i); break;
      case DataType::kComplex64: values[i] = take<float>(data, 2 * i); break;
      case DataType::kComplex128: values[i] = take<double>(data, 2 * i); break;
      default: break;
    }
  }
  return values;
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

double value_of(ReduceOp op, DataType dtype, int rank, std::size_t index) {
  const auto mixed = (static_cast<std::uint64_t>(rank) * 2654435761u + index * 40503u + (index >> 7)) >> 3;
  if (dtype == DataType::kBool) return static_cast<double>(mixed % 2);
  if (op == ReduceOp::kProduct) return mixed % 5 == 0 && dtype != DataType::kUInt8 ? -1.0 : 1.0;
  const double small = static_cast<double>(mixed % 4);
  return dtype == DataType::kUInt8 ? small : small - (mixed % 3 == 0 ? 1.0 : 0.0);
}

double combine(ReduceOp op, DataType dtype, double accumulated, double value) {
  const auto a = static_cast<std::int64_t>(accumulated);
  const auto b = static_cast<std::int64_t>(value);
  const bool logical = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: return logical ? static_cast<double>(a | b) : accumulated + value;
    case ReduceOp::kProduct: return logical ? static_cast<double>(a & b) : accumulated * value;
    case ReduceOp::kMin: return std::fmin(accumulated, value);
    case ReduceOp::kMax: return std::fmax(accumulated, value);
    case ReduceOp::kBand: return static_cast<double>(a & b);
    case ReduceOp::kBor: return static_cast<double>(a | b);
    case ReduceOp::kBxor: return static_cast<double>(a ^ b);
  }
  return accumulated;
}

double tolerance(DataType dtype, int ranks) {
  Format format{};
  const double magnitude = 3.0 * ranks;
  if (narrow_format(dtype, format)) return 3 * magnitude * std::ldexp(1.0, -format.mantissa_bits);
  if (dtype == DataType::kFloat32 || dtype == DataType::kComplex64) return magnitude * ranks * 1.2e-7;
  if (dtype == DataType::kFloat64 || dtype == DataType::kComplex128) return magnitude * ranks * 2.3e-16;
  return 0;
}

}  // namespace atl::test
