// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/handshake/closed_channels.h"
#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/tcp/link.h"
#include "atoll/transport/ucx/agreement.h"
#include "atoll/transport/ucx/context.h"
#include "atoll/transport/ucx/direct.h"
#include "atoll/transport/ucx/rings.h"
#include "atoll/transport/ucx/worker.h"

namespace atl::transport {

class UcxLink;

/// A channel of a UcxLink. Frames wait in rings of both processes; the loop thread gives them to UCX and takes them
/// from it. If UCX cannot serve the pair, the channel of the same name on the link's stream does everything. The
/// functions that are not Channel's are for the link.
class UcxChannel final : public ChannelBase {
 public:
  UcxChannel(UcxLink& link, const ChannelId& id, std::size_t window_bytes);

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  const Frame* front() override;
  void pop() override;

  /// Makes the send ring, before claim(). Throws Error(kUnavailable).
  void open();

  /// Hands everything over to `channel`. Called before the link is up.
  void go_over_stream(Channel& channel) noexcept { over_stream_.store(&channel, std::memory_order_release); }

  /// The bytes of frames accepted so far, and whether the peer has released them all. Any thread, once claimed.
  std::uint64_t written() const noexcept { return sending_->written(); }
  bool all_released() const noexcept { return sending_->released() == sending_->written(); }

  /// Notes that the loop must check this channel; returns true if that was noted already. Any thread.
  bool note_waiting() noexcept { return waiting_.exchange(true, std::memory_order_acq_rel); }

  // On the loop.

  void clear_waiting() noexcept { waiting_.exchange(false, std::memory_order_acq_rel); }
  ucx::SendRing* sending() noexcept { return sender_.load(std::memory_order_acquire); }  ///< nullptr: not claimed
  ucx::ReceiveRing& receiving() noexcept { return receiving_; }

  /// Return whether enough was released that the peer should get credit, and all that was, which counts as sent.
  bool owes_credit_on_loop() const noexcept;
  std::uint64_t take_credit_on_loop() noexcept { return told_ = receiving_.popped(); }

  bool is_active = false;                             ///< the link's: it is among those to check
  std::unique_ptr<ucx::Registration> send_memory;     ///< the link's: with devices that need it
  std::unique_ptr<ucx::Registration> receive_memory;  ///< likewise

 private:
  UcxLink& link_;
  std::atomic<Channel*> over_stream_{nullptr};
  std::atomic<bool> waiting_{false};
  std::unique_ptr<ucx::SendRing> sending_;
  std::atomic<ucx::SendRing*> sender_{nullptr};  // the same, once it is complete
  ucx::ReceiveRing receiving_;
  std::uint64_t told_ = 0;       // the loop's: credit sent to the peer
  std::uint64_t announced_ = 0;  // the receiver's: credit announced to the loop
};

/// A link whose frames travel through UCX: by RDMA, shared memory or any other transport between the two processes.
///
/// Everything else stays on the authenticated stream, which is a TcpLink inside this one: control messages, heartbeats,
/// the goodbye, and the end-of-file that reports a peer's death whatever UCX does. The two ends first check over that
/// stream that UCX works in both directions. If it does not, the frames use the stream too, with a warning; kind() and
/// describe() show it.
class UcxLink final : public LinkBase, private LinkObserver, private ucx::WorkerSink {
 public:
  UcxLink(const LinkOwner& owner, PeerAddress peer, bool same_host, std::shared_ptr<ucx::Context> context);

  LinkKind kind() const noexcept override { return over_stream_.load() ? LinkKind::kTcp : LinkKind::kUcx; }
  Channel& channel(const ChannelId& id) override;
  void close_channel(const ChannelId& id) override;
  bool send_control(std::span<const std::byte> message) override;
  bool send_control_after_frames(std::span<const std::byte> message) override;
  std::string describe() const override;
  DirectPort* direct() noexcept override { return over_ucx_.load(std::memory_order_acquire) ? &direct_ : nullptr; }

  void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) override;
  void begin_shutdown_on_loop() override;
  bool drained_on_loop() const override;

  /// For UcxChannel: makes the loop check the channel. Any thread; neither blocks nor allocates.
  void wake(UcxChannel& channel);
  bool is_leaving() const noexcept { return leaving_.load(std::memory_order_acquire); }

 private:
  enum class Phase { kWaiting, kAgreeing, kUcx, kStream, kEnded };

  /// A message to the peer while UCX has it.
  struct Sending final : ucx::Operation {
    void finish(const Error* problem, std::size_t bytes) override;
    UcxLink* link = nullptr;
    UcxChannel* channel = nullptr;  // whose frame it is; nullptr for other messages
    ucx::Note note;
  };

  /// A frame from the peer on its way into its ring.
  struct Arrival final : ucx::Operation {
    void finish(const Error* problem, std::size_t bytes) override;
    UcxLink* link = nullptr;
    UcxChannel* channel = nullptr;
    std::uint64_t position = 0;
    std::uint64_t bytes = 0;
  };

  /// A control message that waits for frames.
  struct Gated {
    ucx::ControlKind kind;
    std::vector<std::byte> message;
    std::vector<ucx::Note> marks;

    std::size_t bytes() const noexcept { return sizeof(Gated) + message.size() + marks.size() * sizeof(ucx::Note); }
  };

  // LinkBase
  void on_tick_on_loop(Clock::time_point now) override;
  void on_connecting_tick_on_loop(Clock::time_point now) override;
  void teardown_on_loop() noexcept override;
  std::string label() const override { return peer_name() + " (ucx)"; }

  // LinkObserver, of the inner link
  void on_control(Link& link, std::span<const std::byte> message) override;
  void on_link_failed(Link& link, const Error& error, bool closed_in_order) override;

  // ucx::WorkerSink
  void on_message(ucx::MessageKind kind, std::span<const std::byte> note, ucx::Incoming& message) override;

  // Agreeing (link.cpp).
  std::vector<std::byte> open_worker_on_loop(std::string* obstacle);
  void unwatch_worker_on_loop();
  void on_agreement_event_on_loop(std::uint32_t events);
  bool flush_agreement_on_loop();  // false: the link has ended
  void read_agreement_on_loop(std::uint32_t events);
  void step_agreement_on_loop();
  void probe_on_loop();
  void settle_on_loop();
  void go_over_stream_on_loop(const std::string& why);
  void drop_worker_on_loop() noexcept;

  // Frames (link_frames.cpp).
  void drive_on_loop();
  bool turn_on_loop();
  void collect_woken_on_loop();
  void activate_on_loop(UcxChannel& channel);
  void pump_on_loop();
  bool feed_on_loop(UcxChannel& channel);
  bool has_more_on_loop(UcxChannel& channel) const noexcept;
  void on_frame(const ucx::Note& note, ucx::Incoming& message);
  void on_credit(const ucx::Note& note);
  const ucx::Registration* registered(std::unique_ptr<ucx::Registration>& memory, std::span<std::byte> bytes);
  void note_refusal_on_loop(const Error& refusal);
  void rest_on_loop(bool moved, bool more);
  void hear_worker_on_loop(bool hears);
  void signal() noexcept;
  void free_soon(UcxChannel& channel);
  void free_closed_on_loop(UcxChannel& channel) noexcept;
  void look_at_trouble_on_loop();

  // Control messages and the end (link_control.cpp).
  bool send_marks();
  bool send_typed(ucx::ControlKind kind, std::span<const std::byte> message, bool after_frames);
  void open_gates_on_loop();
  bool is_open_on_loop(const Gated& gated);
  void pass_on_loop(const Gated& gated);
  void continue_leaving_on_loop();

  UcxChannel& find_or_make(const ChannelId& id, bool claim);
  UcxChannel* find(const ChannelId& id) const;

  const bool same_host_;
  const std::shared_ptr<ucx::Context> context_;
  const PeerAddress alone_;  // lists no rails: the stream has one
  TcpLink inner_;
  Fd wake_;  // an eventfd, from attach until the link is destroyed, because any thread may write to it

  // The loop's.
  Phase phase_ = Phase::kWaiting;
  ByteStream stream_;  // while agreeing
  PeerAddress authenticated_;
  bool initiator_ = false;
  std::uint32_t watched_ = 0;  // events on stream_; 0: it is not watched
  std::optional<ucx::Agreement> agreement_;
  std::vector<std::byte> agreement_output_;
  std::uint64_t secret_ = 0;  // that the peer's messages must contain
  bool has_probed_ = false;
  bool probe_has_come_ = false;
  bool warned_of_stranger_ = false;
  bool hears_worker_ = true;            // while it is watched: its events wake the loop
  std::optional<Loop::TimerId> pause_;  // until the worker is checked again
  int idle_drives_ = 0;                 // in a row: nothing moved, and UCX could not be armed
  bool watches_worker_ = false;
  std::optional<Clock::time_point> broken_since_;  // when UCX's trouble was noticed
  bool shutdown_requested_ = false;
  bool told_leaving_ = false;        // kLeaving was sent; the peer answers when it has all frames
  bool all_received_ = false;        // the peer has answered: send the goodbye
  bool peer_awaits_answer_ = false;  // to its kLeaving
  bool owes_answer_ = false;         // the frames before it have arrived
  Clock::duration agreeing_{0};
  Clock::time_point last_tick_{};
  std::vector<UcxChannel*> active_;  // channels that may have something to send
  std::vector<UcxChannel*> batch_;
  std::array<Sending, ucx::kMaxTransfers> sendings_;
  std::vector<Sending*> free_sendings_;
  std::array<Arrival, ucx::kMaxTransfers> arrivals_;
  std::vector<Arrival*> free_arrivals_;
  std::vector<ucx::Note> marks_;  // that belong to the next gated message
  std::deque<Gated> gated_;
  std::size_t gated_bytes_ = 0;
  UcxDirect direct_;
  ucx::Registrar registrar_;

  std::atomic<bool> over_ucx_{false};
  std::atomic<bool> over_stream_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> signalled_{false};

  mutable std::mutex channels_mutex_;  // guards what follows up to wake_mutex_
  std::map<ChannelId, std::unique_ptr<UcxChannel>> channels_;
  ClosedChannels closed_early_;
  std::size_t unclaimed_ = 0;  // channels that only the peer has opened
  std::string path_;           // "posix cma", or why UCX does not serve
  std::string unregistered_;   // why not all rings are registered; empty: they are

  std::mutex wake_mutex_;  // taken last
  std::vector<UcxChannel*> woken_;

  std::unique_ptr<ucx::Worker> worker_;  // destroyed first: it still calls into the members above
};

}  // namespace atl::transport
