// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "atoll/collectives/types.h"

namespace atl::collectives {

/// Memory of one segment; `bytes` is a multiple of the dtype's size.
struct Segment {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// One collective call. The memory must stay valid and untouched until completion. Segments as schedule.h describes.
struct Call {
  Operation operation = Operation::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  double factor = 1.0;  ///< PREMUL_SUM
  int root = -1;
  /// An operation may be several calls, on some ranks more than on others: parts 0, 1, 2, ... in this order. Part 0 takes the next number.
  std::uint32_t part = 0;
  std::optional<std::uint64_t> number;  ///< the operation's, where commit() gave it
  std::vector<Segment> input;
  std::vector<Segment> output;
  /// The island's library does what happens inside it; the segments hold and receive what led_inputs and led_outputs
  /// (schedule_leads.h) say, wherever the rest of them is.
  bool library_inside = false;
  std::optional<std::chrono::milliseconds> timeout;  ///< default: the group's
  /// Set where the input is still on its way from a device: asked, on the executing thread, until it returns true.
  std::function<bool()> ready;
  /// gather, scatter and all_to_all only, on the executing thread: whether the first `end` bytes of an input have come there,
  /// asked before they are sent (what a rank gives to itself is there); and told that the first `end` bytes of an output are here.
  std::function<bool(std::uint32_t segment, std::uint64_t end)> loaded;
  std::function<void(std::uint32_t segment, std::uint64_t end)> arrived;
};

/// Called exactly once, on a thread of the group, with nullptr or the error. Must not block.
using Completion = std::function<void(std::exception_ptr error)>;

/// Called exactly once with nullptr or the error, and the rank the message came from.
using ReceiveCompletion = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// Nanoseconds this rank spent in collectives, by what it was doing; for reports.
struct TimeSplit {
  std::uint64_t total_ns = 0;   ///< inside calls
  std::uint64_t bridge_ns = 0;  ///< of that: blocked with a peer of another island among those waited for
  std::uint64_t operations = 0;
  std::uint64_t bytes_inside = 0;  ///< payload sent inside the island
  std::uint64_t bytes_bridge = 0;  ///< payload sent to other islands
};

}  // namespace atl::collectives
