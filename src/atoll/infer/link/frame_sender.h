// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// Sends frames to the other end, in the order of the calls. Any thread; returns at once. Frames are dropped when the
/// connection is lost, which is reported where a reply is awaited. A payload is read until it has been sent or its
/// inference is over.
class FrameSender {
 public:
  virtual ~FrameSender() = default;
  virtual void send(const wire::Message& message) = 0;
  virtual void send(const wire::FrameHeader& header, HostBytes payload) = 0;
};

}  // namespace atl::infer
