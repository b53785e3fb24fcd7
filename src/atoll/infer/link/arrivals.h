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

/// Where the rows that one side receives in an inference arrive, frame by frame, and wait to be taken. Made once for a
/// program; buffers are used again unless somebody still holds their bytes. One thread gives frames, another one takes rows.
class Arrivals {
 public:
  /// What the program's kReceive steps name.
  Arrivals(const Graph& graph, const Operators& operators, const Program& program);
  ~Arrivals();

  /// Forgets what is there and expects rows of this inference, whose numbers ascend.
  void begin(std::uint64_t inference);

  /// Whose rows are expected.
  std::uint64_t inference() const;

  /// A kTensor frame. What to acknowledge when it completes a message. Frames of inferences before the one at hand are
  /// dropped. Error(kProtocol) for any other inference, rows that are not expected or are there already, gaps, and sizes
  /// that do not fit.
  std::optional<wire::Ack> take(const wire::FrameHeader& header, std::span<const std::byte> payload);

  /// These rows, unpacked, once they are all there; none when `until` has passed. Throws what fail() was given, and
  /// Error(kProtocol) for bytes that do not unpack.
  std::optional<HostBytes> wait(int tensor, Region rows, Deadline until);
  /// Whether wait() would return these rows at once.
  bool are_there(int tensor, Region rows) const;

  /// Every wait throws this from now on, until begin().
  void fail(const Error& error);

 private:
  struct Buffer;
  struct Message {
    Region rows{};
    Tensor type{};
    std::size_t most_bytes = 0;
    std::shared_ptr<Buffer> packed{};
    std::shared_ptr<Buffer> plain{};  // where packed bytes are unpacked to
    wire::Codec codec = wire::Codec::kRaw;
    std::size_t size = 0;
    std::size_t there = 0;
    std::size_t first_bytes = 0;
    bool is_begun = false;
    bool is_complete = false;
    Clock::time_point begun{};
  };
  using Key = std::pair<int, std::int64_t>;  // tensor, first row

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Message> messages_;
  std::uint64_t inference_ = 0;
  std::optional<Error> failed_;
};

}  // namespace atl::infer
