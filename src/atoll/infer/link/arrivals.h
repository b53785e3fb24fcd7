// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// The type of rows `rows` of a tensor along its divided dimension `dim` (-1: the whole tensor).
Tensor type_of_rows(const Tensor& whole, int dim, Region rows);

/// Collects the rows that one side receives in an inference, frame by frame, until they are taken. Made once for a
/// program; buffers are reused unless their bytes are still referenced. One thread gives frames, another one takes
/// rows.
class Arrivals {
 public:
  /// Expects the rows that the program's kReceive steps name.
  Arrivals(const Graph& graph, const Operators& operators, const Program& program);
  ~Arrivals();

  /// Drops what has arrived and expects rows of this inference. Numbers of inferences ascend.
  void begin(std::uint64_t inference);

  /// The inference whose rows are expected.
  std::uint64_t inference() const;

  /// Takes a kTensor frame. Returns the acknowledgement if it completes a message. Frames of inferences before the
  /// current one are dropped. Throws Error(kProtocol) for later inferences, for rows that are not expected or have
  /// arrived already, for gaps, and for sizes that do not fit.
  std::optional<wire::Ack> take(const wire::FrameHeader& header, std::span<const std::byte> payload);

  /// Waits until all of these rows have arrived and returns them unpacked; none when `until` has passed. Throws the
  /// error that fail() was given, and Error(kProtocol) for bytes that do not unpack.
  std::optional<HostBytes> wait(int tensor, Region rows, Deadline until);
  /// Returns whether wait() would return these rows at once.
  bool are_there(int tensor, Region rows) const;

  /// Makes every wait throw this error from now on, until begin().
  void fail(const Error& error);

 private:
  struct Buffer;
  struct Message {
    Region rows{};
    Tensor type{};
    std::size_t most_bytes = 0;
    std::shared_ptr<Buffer> packed{};
    std::shared_ptr<Buffer> plain{};  // packed bytes are unpacked to it
    wire::Codec codec = wire::Codec::kRaw;
    std::size_t size = 0;
    std::size_t there = 0;
    std::size_t first_bytes = 0;
    bool has_started = false;
    bool is_complete = false;
    Clock::time_point started{};
  };
  using Key = std::pair<int, std::int64_t>;  // tensor, first row

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Message> messages_;
  std::uint64_t inference_ = 0;
  std::optional<Error> failed_;
};

}  // namespace atl::infer
