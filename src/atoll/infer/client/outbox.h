// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "atoll/infer/link/payload_ring.h"
#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// Holds what inferences send, in order, until the link takes it. What is given up before then is never sent, so that
/// an inference that ends early does not delay the next ones. Rows are read in place. Any thread.
class Outbox {
 public:
  struct Frame {
    std::optional<wire::Message> message;  ///< none: a frame of rows, as follows
    wire::FrameHeader header;
    wire::FrameBytes bytes;
  };
  /// The part of an inference that was not sent.
  struct Unsent {
    std::uint64_t bytes = 0;
    std::optional<wire::FrameHeader> cut;  ///< the next frame's header, if a message was sent in part
  };

  void push(wire::Message message);
  /// Queues a kTensor frame. Its bytes are read until it is taken, or until over().
  void push(const wire::FrameHeader& header, HostBytes payload);
  /// The next frame to send, which no longer refers to the caller's bytes. A payload for which `memory` (null: none)
  /// has room is put there.
  std::optional<Frame> take(PayloadWriter* memory = nullptr);
  /// Stops reading what was given for the inference. Its rows are dropped, or with `leaves` copied and still sent.
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
