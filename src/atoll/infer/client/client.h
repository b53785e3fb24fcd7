// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "atoll/core/fd.h"
#include "atoll/core/loop.h"
#include "atoll/infer/client/link_rates.h"
#include "atoll/infer/client/outbox.h"
#include "atoll/infer/client/server_link.h"
#include "atoll/infer/link/frame_sender.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::infer {

/// The state of a robot's link to its server, with a text for people.
struct LinkStatus {
  LinkState state = LinkState::kConnecting;
  std::string text;               ///< "uploading 12 of 548 MB", "waiting: 2 before you", "lost: why"
  std::uint64_t connections = 0;  ///< opened so far
  std::uint64_t probe_bytes = 0;  ///< spent on measuring the link
  /// Why the server does not run the model, or does not accept this robot; kept until a later attempt gets further.
  std::string refusal;
  bool is_final =
      false;  ///< lasts until the model, the key or a release is changed; the client keeps retrying in case it is
};

/// One model on one server, through one connection at a time. Connects in the background, greets, uploads what the
/// server lacks, and reconnects after every loss until it is stopped, with pauses that grow from `least_backoff` to
/// `most_backoff`. Sending never waits: without a connection, messages are dropped and on_lost has been called.
class Client final : public FrameSender, private LinkOwner {
 public:
  /// Opens a connection, as transport::connect_tcp does. Called on a thread that may outlive the client.
  using Connect = std::function<Fd(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout)>;

  /// Throws Error(kInvalidArgument) for an invalid address. Borrows the owner, which is told of everything but states
  /// and drained queues. Does nothing until start().
  Client(ClientOptions options, ModelFiles files, LinkOwner& owner, Connect connect = transport::connect_tcp);
  ~Client() override;
  void start();
  /// Says goodbye. The owner is not called afterwards. A connection attempt, which the name service may delay, is not
  /// waited for. A second call does nothing.
  void stop();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const wire::Message& message) override;
  /// The payload is read until over().
  void send(const wire::FrameHeader& header, HostBytes payload) override;
  /// Ends an inference here: its bytes are not read any more. If it was `cancelled`, the server is told, and what has
  /// not left is dropped. Returns the number of bytes that were dropped.
  std::uint64_t over(std::uint64_t inference, bool cancelled);

  LinkStatus status() const;
  bool is_ready() const;
  LinkRates& rates() noexcept { return rates_; }
  const LinkRates& rates() const noexcept { return rates_; }
  /// Notes that an inference runs now, so that the estimate is kept fresh for a while.
  void used();
  /// Closes the connection and opens another one, which starts without divisions.
  void reconnect();

 private:
  enum class Phase { kWanted, kConnected, kClosing };

  void on_state(LinkState state, const std::string& text) override;
  void on_refused(const std::string& text, bool is_final) override;
  void on_message(const wire::Message& message) override { owner_.on_message(message); }
  std::optional<wire::Ack> on_tensor(const wire::FrameHeader& header, std::span<const std::byte> payload) override {
    return owner_.on_tensor(header, payload);
  }
  void on_drained() override { feed_on_loop(); }
  void on_lost(const Error& error) override;

  void feed();
  void feed_on_loop();
  void connect_forever();
  bool connect_once(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds& pause);
  void connected_on_loop(Fd socket);
  void tick_on_loop();

  const ClientOptions options_;
  const transport::HostPort address_;
  const ModelFiles files_;
  LinkOwner& owner_;
  const Connect connect_;
  LinkRates rates_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kWanted;
  bool is_stopped_ = false;
  bool resets_backoff_ = true;
  LinkStatus status_;
  std::string lost_;            // the reason for the last loss
  bool refuses_robot_ = false;  // status_.refusal is of the robot, not of the model
  Clock::time_point used_{};

  Outbox outbox_;
  std::atomic<bool> is_fed_ = false;    // feed_on_loop() has been posted
  std::unique_ptr<ServerLink> link_;    // on the loop
  std::optional<Loop::TimerId> timer_;  // likewise
  Loop loop_;
  std::thread connector_;
};

}  // namespace atl::infer
