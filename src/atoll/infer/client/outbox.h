// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// What inferences send, in order, until the link takes it. What is given up before then never leaves, so that an
/// inference that ends early does not hold up the ones behind it; and rows are read where they lie. Any thread.
class Outbox {
 public:
  struct Frame {
    std::optional<wire::Message> message;  ///< or else
    wire::FrameHeader header;
    std::shared_ptr<const std::vector<std::byte>> bytes;  ///< its own and the payload's
  };
  /// What did not leave.
  struct Unsent {
    std::uint64_t bytes = 0;
    std::optional<wire::FrameHeader> cut;  ///< of the message that had begun to leave: its next frame's
  };

  void push(wire::Message message);
  /// A kTensor frame. Its bytes are read until it is taken, or over().
  void push(const wire::FrameHeader& header, HostBytes payload);
  /// What leaves next, which no longer needs what it was made from.
  std::optional<Frame> take();
  /// After this nothing that was given for the inference is read any more. Its rows are dropped; with `leaves` they are
  /// copied, and leave.
  Unsent over(std::uint64_t inference, bool leaves);
  void clear();

 private:
  struct Waiting {
    std::optional<wire::Message> message;
    wire::FrameHeader header;
    HostBytes payload;
  };

  std::mutex mutex_;
  std::deque<Waiting> queue_;
};

}  // namespace atl::infer
