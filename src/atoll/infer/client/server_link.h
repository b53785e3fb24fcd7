// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "atoll/core/loop.h"
#include "atoll/infer/client/link_owner.h"
#include "atoll/infer/client/link_rates.h"
#include "atoll/infer/link/memory_door.h"
#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"
#include "atoll/transport/stream/host_port.h"
#include "atoll/transport/stream/secure_stream.h"

namespace atl::infer {

struct ClientOptions {
  std::string server;  ///< "host:port"
  std::shared_ptr<const transport::Credentials> credentials;
  std::string name;  ///< of this robot, for the server's log
  /// A server that sends nothing and takes nothing for this long is lost.
  std::chrono::milliseconds silence{2000};
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds least_backoff{50};
  std::chrono::milliseconds most_backoff{2000};
  /// Bytes of a probe, which measures the link while inferences run without using it, once the estimate is as old as
  /// `probe_after`. Fewer where they would take more than 20 ms. 0: never.
  std::size_t probe_bytes = 65'536;
  std::chrono::milliseconds probe_after{500};
  /// Time after which a server that cannot run any model of this robot is connected to again: it may have been
  /// replaced.
  std::chrono::milliseconds ask_again{60'000};
};

/// A model as a server gets it.
struct ModelFiles {
  wire::BundleHash hash{};
  std::string graph;  ///< its text
  HostBytes weights;  ///< the whole weight file
};

/// One connection of a robot to a server, from the TLS handshake on. Greets, opens the model, uploads what the server
/// lacks from where it is mapped, sends and answers pings, and measures the link. All on the loop.
class ServerLink final : private transport::SecureStream::Owner {
 public:
  /// Borrows everything but the socket. Must outlive its owner's on_lost, the last call.
  ServerLink(Loop& loop, LinkOwner& owner, Fd socket, const ClientOptions& options, const ModelFiles& files,
             LinkRates& rates);
  ~ServerLink() override;

  void send(const wire::Message& message);
  /// Memory that the server's worker process reads, if it is on this host; null: not (yet).
  PayloadWriter* memory() const noexcept { return sends_lent_ ? &ends_->out : nullptr; }
  /// Sends a whole frame of rows, which begins with its header; `header` is that of a kTensor frame.
  void send_rows(const wire::FrameHeader& header, wire::FrameBytes frame);
  /// Returns whether little is queued, so that what is given now leaves soon.
  bool wants_more() const;
  /// Must be called every tick_period(). `is_used`: inferences are running.
  void tick(bool is_used);
  /// Says goodbye; on_lost follows.
  void close();

  /// The number by which the server knows the model now.
  std::uint64_t model() const noexcept { return model_; }
  bool is_ready() const noexcept { return state_ == LinkState::kReady; }
  /// Returns whether messages about inferences belong to this model number; otherwise they are leftovers of an earlier
  /// one.
  bool takes_inferences() const noexcept { return is_ready() || state_ == LinkState::kDraining; }
  bool was_ready() const noexcept { return was_ready_; }
  bool is_open() const noexcept { return is_open_; }  ///< the handshake is complete
  std::chrono::milliseconds tick_period() const;

 private:
  struct Probe {  // sent by the server
    std::uint64_t id = 0;
    std::uint64_t there = 0;
    std::uint64_t first_bytes = 0;
    Clock::time_point started{};
  };

  void on_open(transport::SecureStream& stream) override;
  void on_bytes(transport::SecureStream& stream, std::span<const std::byte> bytes) override;
  void on_drained(transport::SecureStream& stream) override;
  void on_closed(transport::SecureStream& stream, const std::optional<Error>& error) override;

  void on_frame(const wire::ReceivedFrame& frame);
  void on_control(const wire::Message& message);
  void on_welcome(const wire::Welcome& welcome);
  void on_need(const wire::Need& need);
  void on_offer(const wire::Offer& offer);
  void on_rows(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void on_lent(const wire::ReceivedFrame& frame);
  void on_failed(const wire::Failed& failed);
  void on_probe(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void reply(const wire::Message& message);
  void refuse_all(const std::string& why);
  void refuse(const std::string& why, bool is_final);
  void open_model();
  void upload();
  void probe();
  void enter(LinkState state, const std::string& text);
  void end(const Error& error);
  void send(const wire::FrameHeader& header, HostBytes payload);
  void queue(wire::FrameBytes frame);
  void queue(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  Loop& loop_;
  LinkOwner& owner_;
  const ClientOptions& options_;
  const ModelFiles& files_;
  LinkRates& rates_;
  wire::FrameParser parser_;
  LinkState state_ = LinkState::kConnecting;
  bool was_ready_ = false;
  bool has_ended_ = false;
  bool is_open_ = false;
  std::uint64_t model_ = 0;
  std::uint64_t uploaded_ = 0;
  int shown_percent_ = -1;
  int divides_ = 0;  // unanswered
  int runs_ = 0;     // unanswered
  Clock::time_point heard_;
  Clock::time_point drained_;  // when the queue last became shorter
  std::size_t queued_ = 0;
  std::size_t replies_ = 0;  // since the queue was last empty
  Clock::time_point pinged_;
  bool awaits_pong_ = false;
  bool measures_trip_ = false;  // the queue was empty before the ping
  std::uint64_t token_ = 0;
  std::optional<Clock::time_point> reopen_at_;
  std::optional<Clock::time_point> reconnect_at_;
  std::chrono::milliseconds reopen_delay_{1000};
  std::optional<Clock::time_point> drains_until_;
  std::optional<Probe> their_probe_;
  const std::uint16_t local_port_;       // of this end if the server is on this host; otherwise 0
  std::unique_ptr<MemoryFetch> fetch_;   // of what the server has offered
  std::shared_ptr<PayloadEnds> ends_;    // kept for frames that are under way when the model is opened again
  bool sends_lent_ = false;              // of the current model
  std::optional<Error> closing_reason_;  // known before the connection closes
  std::unique_ptr<transport::SecureStream> stream_;
};

}  // namespace atl::infer
