// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace atl::collectives {

/// Returns an enumerator's entry, and `other` for any other value, which a peer's frame may hold.
template <typename Enum, typename Entry, std::size_t kCount>
constexpr Entry entry_of(const std::array<Entry, kCount>& entries, Enum value, Entry other) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? entries[index] : other;
}

enum class Operation : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
};
const char* to_string(Operation operation) noexcept;  ///< "all_reduce"

/// Returns true for gather, scatter and all_to_all: each pair of ranks exchanges a message of its own, whose size only
/// those two know.
constexpr bool is_direct(Operation operation) noexcept {
  return operation == Operation::kGather || operation == Operation::kScatter || operation == Operation::kAllToAll;
}

/// Returns whether contributions are folded, not only moved; false for barrier, whose one byte means nothing.
constexpr bool has_reduction(Operation operation) noexcept {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter ||
         operation == Operation::kReduce;
}

/// Returns whether one rank of the call is its root.
constexpr bool has_root(Operation operation) noexcept {
  return operation == Operation::kBroadcast || operation == Operation::kReduce || operation == Operation::kGather ||
         operation == Operation::kScatter;
}

enum class DataType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  kComplex64,
  kComplex128,
};
inline constexpr int kDataTypeCount = 14;
const char* to_string(DataType dtype) noexcept;  ///< "float32"
std::size_t size_of(DataType dtype) noexcept;    ///< bytes of one element

enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };
inline constexpr int kReduceOpCount = 9;
const char* to_string(ReduceOp op) noexcept;  ///< "sum"

/// Returns false for undefined combinations: bitwise operations on floating-point or complex types, MIN and MAX of
/// complex types, AVG and PREMUL_SUM of bool.
bool is_supported(ReduceOp op, DataType dtype) noexcept;

}  // namespace atl::collectives
