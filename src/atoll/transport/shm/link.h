// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/shm/channel.h"
#include "atoll/transport/shm/wire.h"

namespace atl::transport {

/// A link between two processes of one host. Frames travel through rings in shared memory (ring.h) without a system
/// call, except to wake a sleeper. A Unix stream carries the rings' memory, control messages and the goodbye; an
/// end-of-file without one means that the peer died.
class ShmLink final : public LinkBase {
 public:
  using LinkBase::LinkBase;

  LinkKind kind() const noexcept override { return LinkKind::kShm; }
  Channel& channel(const ChannelId& id) override;
  void close_channel(const ChannelId& id) override;
  bool send_control(std::span<const std::byte> message) override;
  bool send_control_after_frames(std::span<const std::byte> message) override;
  std::string describe() const override { return "shm"; }

  void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) override;
  bool has_arena() const noexcept { return options().arena != nullptr; }

  /// Passes a slab of this process's arena to the peer, once. Any thread. Returns false if the system has no descriptor
  /// left for that.
  bool pass_slab(std::uint32_t slab);

  void begin_shutdown_on_loop() override;
  bool drained_on_loop() const override;

 private:
  void on_tick_on_loop(Clock::time_point now) override;
  void on_connecting_tick_on_loop(Clock::time_point now) override;
  void teardown_on_loop() noexcept override;
  std::string label() const override;

  void on_stream_event_on_loop(std::uint32_t events);
  void receive_on_loop();
  void handle_on_loop(const shm::Message& message);
  void handle_hello_on_loop(const shm::Message& message);
  void handle_open_on_loop(const shm::Message& message);
  void handle_slab_on_loop(const shm::Message& message);
  void flush_later_on_loop();

  ShmChannel& find_or_make(const ChannelId& id);
  void open(const ChannelId& id);
  void flush();

  // The loop thread's own.
  pid_t peer_process_ = 0;
  bool watches_output_ = false;
  std::uint64_t seen_beats_ = 0;
  std::chrono::milliseconds patience_{0};  // a peer that is silent for longer is lost
  Clock::duration silence_{0};
  Clock::time_point last_tick_{};

  PeerArena peer_arena_;

  mutable std::mutex mutex_;  // guards what follows; the receiving half of the stream is the loop thread's
  shm::Stream stream_;
  bool attached_ = false;
  bool said_bye_ = false;
  RemoteDoorbell peer_doorbell_;
  std::set<std::uint32_t> passed_slabs_;
  std::map<ChannelId, std::unique_ptr<ShmChannel>> channels_;
  std::vector<ChannelId> waiting_;  // channels to open once the stream is attached
  std::size_t unclaimed_ = 0;       // channels that only the peer has opened
};

}  // namespace atl::transport
