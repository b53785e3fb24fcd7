// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/collectives/types.h"
#include "atoll/core/deadline.h"

namespace atl::collectives {

/// Memory of one segment; `bytes` is a multiple of the dtype's size.
struct Segment {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Follows the bytes of one call whose tensors are copied from a device and back. Called on the executing thread; what
/// a function throws ends the group.
class CallProgress {
 public:
  virtual ~CallProgress() = default;

  /// Returns whether the call may start; polled until it returns true.
  virtual bool is_loaded() = 0;

  /// Returns whether the call starts with the first bytes of its input and uses the functions below; for gather,
  /// scatter and all_to_all only.
  virtual bool comes_in_parts() const { return false; }

  /// Returns whether the first `end` bytes of an input are in memory. Called before those bytes are sent, but not for
  /// what a rank gives to itself, which is there already.
  virtual bool is_loaded(std::uint32_t /*segment*/, std::uint64_t /*end*/) { return true; }

  /// Notes that the first `end` bytes of an output are in memory.
  virtual void arrived(std::uint32_t /*segment*/, std::uint64_t /*end*/) {}
};

/// One collective call. Its memory must stay valid and untouched until completion. schedule.h describes the segments.
struct Call {
  Operation operation = Operation::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  double factor = 1.0;  ///< PREMUL_SUM
  int root = -1;
  /// An operation may consist of several calls, and of more calls on some ranks than on others: parts 0, 1, 2, ... in
  /// this order. Part 0 takes the next operation number.
  std::uint32_t part = 0;
  std::optional<std::uint64_t> number;  ///< of the operation, if commit() has assigned one
  std::vector<Segment> input;
  std::vector<Segment> output;
  /// The island's library does the work inside the island. The segments hold, and receive, only what led_inputs and
  /// led_outputs (schedule/chunks.h) name; the library keeps the rest.
  bool library_inside = false;
  std::optional<std::chrono::milliseconds> timeout;  ///< default: the group's
  std::shared_ptr<CallProgress> progress;            ///< null if the input is in memory
};

/// One call of an island's library, on several ranks of the island.
struct LibraryStep {
  enum class Kind : std::uint8_t {
    kIn = 1,      ///< brings one part of a collective to the bridge; all ranks of the island
    kOut,         ///< spreads what has crossed, for a collective without kIn; all ranks of the island
    kOutAfterIn,  ///< the same for a collective with kIn, whose result depends on the input of every rank of the group
    kMessage,     ///< carries a message from one rank to another
  };
  Kind kind = Kind::kIn;
  std::int32_t sender = -1;  ///< group ranks; for messages only
  std::int32_t receiver = -1;
  /// A collective's sequence (describe.h), or a message's index among those from sender to receiver.
  std::uint64_t number = 0;

  friend auto operator<=>(const LibraryStep&, const LibraryStep&) = default;
};

/// A rank's request for a step: it is ready.
struct StepRequest {
  LibraryStep step;
  /// Called once, on any thread, in the order that all ranks of the island share: with nullptr when the step's turn has
  /// come, or with an error if it never will. Must not block, and must not call the group.
  std::function<void(const std::exception_ptr& error)> go;
  Deadline deadline = Deadline::never();  ///< after which the group fails
  std::string timed_out{};                ///< the text of that error
};

/// Called exactly once, on a thread of the group, with nullptr or the error. Must not block.
using Completion = std::function<void(std::exception_ptr error)>;

/// Called exactly once with nullptr or the error, and with the rank that the message came from.
using ReceiveCompletion = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// Nanoseconds that this rank spent in collectives, by activity; for reports.
struct TimeSplit {
  std::uint64_t total_ns = 0;   ///< inside calls
  std::uint64_t bridge_ns = 0;  ///< of that: blocked while waiting for at least one peer of another island
  std::uint64_t operations = 0;
  std::uint64_t bytes_inside = 0;  ///< payload sent inside the island
  std::uint64_t bytes_bridge = 0;  ///< payload sent to other islands
  std::uint64_t bytes_lent = 0;    ///< of both: read by peers in this rank's arena instead of being copied
};

}  // namespace atl::collectives
