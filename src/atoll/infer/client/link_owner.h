// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/error.h"
#include "atoll/infer/client/link_state.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// Is told what happens on a robot's link to its server. Called on the link's loop, one at a time; must not block.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void on_state(LinkState /*state*/, const std::string& /*text*/) {}
  /// The server does not run the model, or does not accept this robot. `is_final`: it will refuse every time.
  virtual void on_refused(const std::string& /*text*/, bool /*is_final*/) {}
  /// Ready: the server can run the model, which it knows by Ready's number until on_lost. Then messages about
  /// inferences and divisions (Divided, Done, Failed, Queued), and Pong. Failed with inference 0 refers to the division
  /// that was requested last.
  virtual void on_message(const wire::Message& message) = 0;
  /// A kTensor frame. Returns the acknowledgement to send, if any. Error(kProtocol) ends the connection.
  virtual std::optional<wire::Ack> on_tensor(const wire::FrameHeader& header, std::span<const std::byte> payload) = 0;
  /// Everything that was sent has been handed to the kernel.
  virtual void on_drained() {}
  /// The last call about a connection, made once, also for one that could not be opened.
  virtual void on_lost(const Error& error) = 0;
};

}  // namespace atl::infer
