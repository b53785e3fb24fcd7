// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/collectives/describe.h"
#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/collectives/refusals.h"
#include "atoll/transport/doorbell.h"

namespace atl::collectives {

/// Tagged messages between the ranks of a group, over one channel per pair. Small messages are sent at once and wait in
/// a bounded buffer at the receiver (eager); larger ones are announced and sent when the receive is posted, straight
/// into its buffer (rendezvous). So a message that is never received does not block another one, and memory is bounded
/// on both sides. Large messages of a device may be announced as direct: once granted, they bypass the channel through
/// the rings of both ends (direct_messages.h), and the receiver reports their arrival. All functions are thread-safe.
class PointToPoint {
 public:
  static constexpr std::uint64_t kEagerBytes = std::uint64_t{16} << 10;  ///< larger messages are announced

  /// `fail` is called when the flow itself breaks (mismatch, timeout, lost peer), and `query` about once a second with
  /// each peer that messages have been waiting for without any progress; both without locks held. `prepare_thread`, if
  /// set, is called first by the thread that moves messages.
  PointToPoint(PeerPorts& ports, const Failure& failure, std::uint32_t attempt, bool check_data,
               std::chrono::nanoseconds spin, std::function<void(const Error&)> fail,
               std::function<void(int peer)> query, std::function<void()> prepare_thread = {});
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Sends from a device only if direct_port() was not nullptr. With a landing, only the size of `data` counts.
  void send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data, Deadline deadline,
            Completion done, const MessageOrigin& origin = {});
  void receive(int source, std::uint64_t tag, DataType dtype, std::span<std::byte> data, Deadline deadline,
               ReceiveCompletion done, std::shared_ptr<Landing> landing = nullptr);

  /// Replaces send() or receive() for a call that this rank refuses: the peer's end of that message fails with `why`.
  void refuse_send(int destination, std::uint64_t tag, const std::string& why);
  void refuse_receive(int source, std::uint64_t tag, const std::string& why);

  /// See Group::direct_port.
  transport::DirectPort* direct_port(int destination, std::uint64_t bytes) const;

  /// Returns the number of direct messages, sent and received.
  std::uint64_t direct_messages() const noexcept { return direct_count_.load(std::memory_order_relaxed); }

  /// Fails everything pending with the group's error. May be called on any thread.
  void fail_pending();

  /// Ends the thread that moves messages, once the group has failed. Must not be called by a completion.
  void stop();

  /// Marks that `peer` will send nothing more: receives from it whose message has not arrived fail, and nothing else
  /// does.
  void mark_left(int peer);

  /// Waits until this rank's messages are sent and those that have started to arrive are here, or until `deadline`.
  void drain(Deadline deadline);

 private:
  static constexpr std::uint64_t kEagerBudget = std::uint64_t{256}
                                                << 10;     // unreceived eager bytes per pair and direction
  static constexpr std::uint64_t kFrameCost = 64;          // an empty message occupies the budget too
  static constexpr std::uint64_t kAnnouncedBudget = 1024;  // announced and not granted, per pair and direction
  static constexpr std::uint64_t eager_cost(std::uint64_t bytes) { return bytes + kFrameCost; }

  struct Outgoing {
    std::uint64_t id;
    std::uint64_t tag;
    DataType dtype;
    std::span<const std::byte> data;
    MessageOrigin origin;
    Deadline deadline;
    Completion done;
    std::shared_ptr<TransferStatus> transfer{};  // of a granted direct message
    bool announced = false;
    bool granted = false;
    std::uint64_t sent = 0;
    std::string refusal{};  // why the message was refused

    std::uint64_t loaded() const {
      return origin.loaded ? origin.loaded->load(std::memory_order_acquire) : data.size();
    }
  };
  struct Unexpected {
    int source;
    std::uint64_t tag;
    DataType dtype;
    std::uint64_t bytes;
    FrameKind kind;  // kMessage, kWithdrawn, kAnnounce or kAnnounceDirect
    std::uint64_t id;
    std::vector<std::byte> payload;  // of an eager or withdrawn message
    bool is_announced() const { return kind == FrameKind::kAnnounce || kind == FrameKind::kAnnounceDirect; }
  };
  struct Posted {
    int source;
    std::uint64_t tag;
    DataType dtype;
    std::span<std::byte> data;
    std::shared_ptr<Landing> landing;  // nullptr: none
    Deadline deadline;
    ReceiveCompletion done;
    std::shared_ptr<TransferStatus> transfer{};  // of a direct message
    // Once matched with an announced message:
    int from = -1;
    std::uint64_t message_id = 0;
    std::uint64_t received = 0;
    std::string refusal{};  // why the receive was refused

    bool wants(const Unexpected& message) const {
      return (source == kAnySource || source == message.source) && tag == message.tag;
    }
    int awaited_rank() const { return from >= 0 ? from : source; }  // or kAnySource
  };
  struct Peer {
    transport::Channel* channel = nullptr;
    std::deque<Outgoing> outgoing;     // in order of issue; the granted ones are sent concurrently
    std::deque<std::uint64_t> grants;  // to be sent
    std::deque<std::pair<std::uint64_t, std::string>> turned_down;  // to be sent: refused announcements and the reason
    std::uint64_t consumed = 0;                                     // eager bytes to be credited back
    std::uint64_t eager_in_flight = 0;                              // bytes that the peer holds for this rank
    std::uint64_t announced_in_flight = 0;                          // messages announced and not granted
    std::uint64_t eager_held = 0;                                   // held for the peer: bytes not credited back,
    std::uint64_t announced_held = 0;                               // and messages not granted
    std::deque<std::uint64_t> landed;                               // direct messages whose arrival is to be reported
    std::uint64_t not_landed = 0;  // granted direct messages whose arrival the peer has not reported
    std::uint64_t next_id = 1;
    bool left = false;
    bool ended = false;  // its link is gone, and everything it sent was taken
  };
  using Ready = std::vector<std::function<void()>>;  // completions, to be called without the lock

  Peer& open(int peer);
  bool progress(Ready& ready);
  bool exchange(int rank, Peer& peer, Ready& ready);
  bool push(Peer& peer, Ready& ready);
  bool push_control(Peer& peer);
  bool start(Peer& peer, Outgoing& message, bool* finished);
  bool start_refused(Peer& peer, Outgoing& message);
  bool stream(Peer& peer, Outgoing& message);
  bool pull(int rank, Peer& peer, Ready& ready);
  static void admit(int rank, Peer& peer, const transport::Frame& frame);
  void accept_start(int rank, Peer& peer, const transport::Frame& frame, Ready& ready);
  void accept_payload(int rank, const transport::Frame& frame, Ready& ready);
  void accept_turned_down(int rank, Peer& peer, const transport::Frame& frame, Ready& ready);
  void fail_withdrawn(Posted& posted, const Unexpected& message, std::span<const std::byte> payload,
                      Ready& ready) const;
  bool take(Posted& posted, const Unexpected& message, std::span<const std::byte> payload, Ready& ready);
  void match(std::list<Posted>::iterator posted, const Unexpected& message, std::span<const std::byte> payload,
             Ready& ready);
  void match_newest(Ready& ready);
  void bind(Posted& posted, const Unexpected& message, Peer& peer);
  static std::span<std::byte> on_host(Posted& posted);
  void start_direct(int rank, Peer& peer, Outgoing& message);
  void start_direct(Posted& posted);
  static bool is_transferred(const Outgoing& message);
  bool finish_direct(Ready& ready);
  void accept_landed(int rank, Peer& peer, std::uint64_t id, Ready& ready);
  static void finish(const std::shared_ptr<TransferStatus>& transfer, std::function<void()> complete, Ready& ready);
  void check_size(const Posted& posted, int source, std::uint64_t bytes, DataType dtype) const;
  bool send_checked(Peer& peer, transport::FrameHeader& header, std::span<const std::byte> data) const;
  void check_payload(int rank, const transport::Frame& frame) const;
  void check_deadlines();
  bool fail_left(Ready& ready);
  bool gone(int rank);
  bool all_gone();
  void end_messages(const std::function<std::exception_ptr(bool sends, int rank)>& error_of, Ready& ready);
  std::string name_of(bool sends, int rank) const;
  [[noreturn]] static void broken_by(int rank, const std::string& how);
  static std::exception_ptr name_operation(const std::exception_ptr& error, const std::string& operation);
  bool pending() const;
  std::vector<int> awaited() const;
  void step_outside_lock(const std::function<void(Ready&)>& action);
  void fail_group();
  void work();
  transport::FrameHeader header(FrameKind kind, std::uint64_t tag) const;

  PeerPorts& ports_;
  const Failure& failure_;
  const std::uint32_t attempt_;
  const bool check_data_;
  const std::chrono::nanoseconds spin_;
  const std::function<void(const Error&)> fail_;
  const std::function<void(int)> query_;
  const std::function<void()> prepare_thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::list<Posted> posted_;          // in order of posting, not yet matched
  std::list<Posted> arriving_;        // matched with an announced message
  std::list<Unexpected> unexpected_;  // in order of arrival
  std::size_t outgoing_count_ = 0;
  std::size_t not_landed_ = 0;  // of all peers
  std::atomic<std::uint64_t> direct_count_{0};
  bool owes_control_ = false;  // grants or credit that found no room
  bool stopping_ = false;
  std::thread worker_;
  DirectMessages direct_;  // destroyed first: the end of a transfer rings the doorbell
};

}  // namespace atl::collectives
