// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "atoll/core/error.h"
#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/link/frame_sender.h"
#include "atoll/infer/link/payload_ring.h"

namespace atl::infer {

/// A thread of a worker process that reads what the server sends. Rows go to the arrivals of the current inference,
/// turns and cancellations take effect at once, and all other messages wait to be taken in order.
class Inbox {
 public:
  /// `socket` is blocking and must stay open until the inbox has ended. Acknowledgements go to `sender`. `lent`: where
  /// the payloads of lent frames lie; null: such frames are an error.
  Inbox(int socket, FrameSender& sender, PayloadReader* lent = nullptr);
  /// Joins the thread; the socket must have been shut down.
  ~Inbox();

  /// Sends rows of this division's inferences to `arrivals` from now on.
  void add_division(std::uint32_t division, std::shared_ptr<Arrivals> arrivals);

  /// The next message; none when the server has closed the socket. Throws Error(kProtocol) after bytes that do not
  /// parse.
  std::optional<wire::Message> next();

  bool is_cancelled(std::uint64_t inference) const noexcept { return cancelled_.load() >= inference; }
  /// Waits until the server gives this process its turn; false when the server has closed the socket.
  bool wait_for_turn();

 private:
  void read();
  void take(const wire::ReceivedFrame& frame);
  void deliver(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void end(std::optional<Error> error);

  const int socket_;
  FrameSender& sender_;
  PayloadReader* const lent_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::Message> messages_;
  std::map<std::uint32_t, std::shared_ptr<Arrivals>> divisions_;
  std::shared_ptr<Arrivals> current_;  // of the current inference
  bool has_turn_ = false;
  bool is_over_ = false;
  std::optional<Error> error_;
  std::atomic<std::uint64_t> cancelled_{0};  // inferences up to this one
  std::thread thread_;
};

}  // namespace atl::infer
