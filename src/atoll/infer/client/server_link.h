// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "atoll/core/loop.h"
#include "atoll/infer/client/link_rates.h"
#include "atoll/infer/client/link_state.h"
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
  /// A server from which nothing comes for so long, and that takes nothing either, is lost.
  std::chrono::milliseconds silence{2000};
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds least_backoff{50};
  std::chrono::milliseconds most_backoff{2000};
  /// While inferences are made and none of them uses the link, so many bytes measure it, once the estimate is as old as
  /// `probe_after`; fewer where they would take more than 20 ms. 0: never.
  std::size_t probe_bytes = 65'536;
  std::chrono::milliseconds probe_after{500};
  /// A server that takes no model as large as this one is connected to anew after so long: it may be another one then.
  std::chrono::milliseconds ask_again{60'000};
};

/// A model as a server gets it.
struct ModelFiles {
  wire::BundleHash hash{};
  std::string graph;  ///< its text
  HostBytes weights;  ///< the whole weight file
};

/// One connection of a robot to a server, from the TLS handshake on: greets, opens the model, uploads what the server lacks
/// from where it is mapped, answers and sends pings, measures the link. All on the loop.
class ServerLink final : private transport::SecureStream::Owner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_state(LinkState state, const std::string& text) = 0;
    /// The state is kRefused. Final: the server will say so each time it is asked.
    virtual void on_refused(const std::string& text, bool is_final) = 0;
    /// Ready; then whatever else is about inferences and divisions, Divided, Done, Failed, Queued; and Pong.
    virtual void on_message(const wire::Message& message) = 0;
    /// A kTensor frame. What to acknowledge. Error(kProtocol) ends the connection.
    virtual std::optional<wire::Ack> on_tensor(const wire::FrameHeader& header, std::span<const std::byte> payload) = 0;
    /// All that was sent is with the system.
    virtual void on_drained() = 0;
    /// Once, and the last call. The connection must outlive it.
    virtual void on_end(const Error& error) = 0;
  };

  /// All but the socket are borrowed.
  ServerLink(Loop& loop, Owner& owner, Fd socket, const ClientOptions& options, const ModelFiles& files,
             LinkRates& rates);
  ~ServerLink() override;

  void send(const wire::Message& message);
  /// A whole kTensor frame, and its header.
  void send_rows(const wire::FrameHeader& header, std::shared_ptr<const std::vector<std::byte>> frame);
  /// Whether little is queued: what is given now leaves soon.
  bool wants_more() const;
  /// To be called every few milliseconds. `is_used`: inferences are being made.
  void tick(bool is_used);
  /// Says goodbye; on_end follows.
  void close();

  /// By which the server knows the model now.
  std::uint64_t model() const noexcept { return model_; }
  bool is_ready() const noexcept { return state_ == LinkState::kReady; }
  /// What belongs to inferences of this connection; else it is of one before.
  bool takes_inferences() const noexcept { return is_ready() || state_ == LinkState::kDraining; }
  bool was_ready() const noexcept { return was_ready_; }
  bool is_open() const noexcept { return is_open_; }  ///< the handshake is over
  std::chrono::milliseconds tick_period() const;

 private:
  struct Probe {  // that the server sends
    std::uint64_t id = 0;
    std::uint64_t there = 0;
    std::uint64_t first_bytes = 0;
    Clock::time_point begun{};
  };

  void on_open(transport::SecureStream& stream) override;
  void on_bytes(transport::SecureStream& stream, std::span<const std::byte> bytes) override;
  void on_drained(transport::SecureStream& stream) override;
  void on_closed(transport::SecureStream& stream, const std::optional<Error>& error) override;

  void on_frame(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void on_control(const wire::Message& message);
  void on_welcome(const wire::Welcome& welcome);
  void on_need(const wire::Need& need);
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
  void queue(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  Loop& loop_;
  Owner& owner_;
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
  int divides_ = 0;  // without an answer
  int runs_ = 0;     // likewise
  Clock::time_point heard_;
  Clock::time_point drained_;  // the last time at which the queue became shorter
  std::size_t queued_ = 0;
  std::size_t replies_ = 0;  // since the queue was last empty
  Clock::time_point pinged_;
  bool awaits_pong_ = false;
  bool measures_trip_ = false;  // nothing was before the ping in the queue
  std::uint64_t token_ = 0;
  std::optional<Clock::time_point> reopen_at_;
  std::optional<Clock::time_point> reconnect_at_;
  std::chrono::milliseconds reopen_delay_{1000};
  std::optional<Clock::time_point> drains_until_;
  std::optional<Probe> their_probe_;
  std::optional<Error> told_;  // why the server closes
  std::unique_ptr<transport::SecureStream> stream_;
};

}  // namespace atl::infer
