// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/sim/library/call.h"

namespace atl::sim {

inline constexpr std::size_t kSlots = 4;  ///< operations of one communicator that may be under way at once

/// What one rank publishes of its part of an operation.
struct Record {
  std::uint64_t sequence = 0;
  Operation operation{};
  DataType dtype{};
  ReduceOp reduce_op{};
  std::int32_t root = -1;
  std::int64_t begin_ns = 0;  ///< modelled, on the host's steady clock
  std::int64_t duration_ns = 0;
  std::uint64_t output_bytes = 0;
  std::uint32_t regions = 0;
};

/// One rank's progress with the operation of a slot. It only grows: 4 * sequence + 1 published, + 2 reduced, + 3 done.
enum class Stage : std::uint64_t { kPublished = 1, kReduced = 2, kDone = 3 };

/// One rank's half of one slot. The record and the regions may be read once `stage` is kPublished or later.
struct Half {
  std::atomic<std::uint64_t>& stage;
  Record& record;
  std::span<Region> regions;
};

/// Memory that all ranks of a communicator share: what each has published, its progress, and the first error.
/// Thread-safe.
class Control {
 public:
  enum class Outcome { kReady, kFailed, kTimeout };

  /// Makes the memory (rank 0), or opens the memory that rank 0 made. Throws Error(kUnavailable), and kProtocol if its
  /// size is wrong.
  explicit Control(int size);
  Control(int size, Fd memory);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const Fd& memory() const noexcept { return memory_; }

  /// Returns the half of `rank` for the collective with this sequence.
  Half collective(std::uint64_t sequence, int rank) const noexcept;

  /// Return the halves of the sender and the receiver of messages from one rank to another.
  Half sender(int from, int to) const noexcept;
  Half receiver(int from, int to) const noexcept;

  /// Stores `stage` of operation `sequence` and wakes all waiting threads.
  void advance(const Half& half, std::uint64_t sequence, Stage stage) noexcept;
  static bool has_reached(const Half& half, std::uint64_t sequence, Stage stage) noexcept;

  /// Blocks until `ready()` returns true, the communicator has failed, or `deadline`.
  Outcome wait(const std::function<bool()>& ready, Deadline deadline) noexcept;

  /// Wakes all waiting threads of all ranks, so that they check again.
  void ring() noexcept;

  /// Sets the error of all ranks; the first one is kept.
  void fail(ErrorKind kind, const std::string& text) noexcept;
  bool has_failed() const noexcept;
  std::optional<Error> error() const;

  /// Notes that `rank` takes part in no further operations.
  void leave(int rank) noexcept;
  bool has_left(int rank) const noexcept;

 private:
  struct Header;
  void map();
  Half half(std::size_t index) const noexcept;

  const std::size_t size_;
  Fd memory_;
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
};

}  // namespace atl::sim
