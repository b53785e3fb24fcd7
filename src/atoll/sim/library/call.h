// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace atl::sim {

enum class Operation : std::uint32_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kReceive,
};

enum class DataType : std::uint32_t {
  kBool,
  kUInt8,
  kInt8,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBytes,  ///< floating-point numbers of 8 bits: can be moved, not reduced
};

enum class ReduceOp : std::uint32_t { kSum, kAvg, kProduct, kMin, kMax };

const char* to_string(Operation operation) noexcept;  ///< "all_reduce"
const char* to_string(DataType dtype) noexcept;       ///< "float32"
const char* to_string(ReduceOp op) noexcept;          ///< "sum"
std::size_t element_size(DataType dtype) noexcept;    ///< bytes

/// Bytes of one device's memory. `offset` counts from the start of that memory; an empty region has no address.
struct Region {
  std::int32_t device = -1;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// One operation as one rank calls it. Its regions, where n is the number of ranks:
///   all_reduce               one region, in place: input and output are equal
///   reduce, broadcast        one region, in place; other ranks keep their own (reduce) or get the root's (broadcast)
///   all_gather, gather       input 1, output n (gather: at the root, elsewhere none)
///   reduce_scatter, scatter  input n (scatter: at the root, elsewhere none), output 1
///   all_to_all               input n, output n
///   send, receive            input 1, or output 1; `root` is the peer
struct Call {
  Operation operation = Operation::kBarrier;
  DataType dtype = DataType::kBytes;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;
  std::vector<Region> input;
  std::vector<Region> output;
  std::uint64_t sequence = 0;            ///< from Communicator::next_sequence()
  std::chrono::nanoseconds duration{0};  ///< modelled time; the longest among the ranks counts
  std::chrono::nanoseconds timeout{0};
};

}  // namespace atl::sim
