// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/transport/endpoint.h"
#include "atoll/transport/handshake/acceptor.h"
#include "atoll/transport/handshake/connector.h"
#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/ucx/context.h"

namespace atl::transport {

/// Chooses the kind of link between two endpoints; both compute the same. Returns nullopt when one insists on a kind
/// that the other, or the distance, forbids. With kAuto: shm on one host; between hosts ucx if both have RDMA through
/// it, else tcp. If one requests ucx and the other lacks it, the choice is as with kAuto.
std::optional<LinkKind> choose_kind(const PeerAddress& a, const PeerAddress& b) noexcept;

/// Returns the kind of stream on which a link of that kind opens.
constexpr LinkKind stream_of(LinkKind kind) noexcept { return kind == LinkKind::kUcx ? LinkKind::kTcp : kind; }

struct Endpoint::Impl final : private Acceptor::Owner, private Connector::Owner, private RailConnector::Owner {
  Impl(EndpointOptions given, LinkObserver& watcher);
  ~Impl() override;

  void set_key(std::vector<std::byte> key);
  Link& link(const PeerAddress& peer);
  std::vector<Link*> links() const;
  void shutdown(Deadline linger);
  void abort() noexcept;

  const EndpointOptions options;
  LinkObserver& observer;
  PeerAddress self;
  Doorbell bell;
  std::unique_ptr<Loop> loop;

 private:
  /// One peer. Only `link` may be read by other threads, under mutex_; the rest belongs to the loop.
  struct Entry {
    PeerAddress address;
    std::unique_ptr<LinkBase> link;
    std::unique_ptr<Connector> connector;               // our own connection, while it is being made
    HandshakeStream* held = nullptr;                    // the peer's connection, proven, while ours may still win
    std::vector<std::unique_ptr<RailConnector>> rails;  // further connections that are being made
    bool attached = false;
    Clock::time_point waits_since = Clock::now();  // for the peer's connection, which wins
  };

  void on_incoming_proven(HandshakeStream& stream) override;
  void on_incoming(std::uint8_t rail, ByteStream stream, const PeerAddress& authenticated) override;
  void on_incoming_gone(const HandshakeStream& stream) override;
  void on_connected(const PeerId& peer, ByteStream stream, const PeerAddress& authenticated) override;
  void on_connect_failed(const PeerId& peer, const Error& error) override;
  void on_yielded(const PeerId& peer) override;
  bool on_attempt_failed(const PeerId& peer) override;
  void on_rail_connected(const RailConnector& connector, ByteStream stream) override;
  void on_rail_failed(const RailConnector& connector, const Error& error) override;

  Entry& find_or_make(const PeerAddress& peer, bool* made);
  std::vector<Entry*> entries() const;
  Entry* find(const PeerId& peer);
  HandshakeIdentity identity(LinkKind kind, std::uint8_t rail = 0) const;
  void connect_on_loop(Entry& entry);
  void connect_rails_on_loop(Entry& entry);
  void attach_on_loop(Entry& entry, ByteStream stream, bool initiator, const PeerAddress& authenticated);
  void tick_on_loop();
  void close_all_on_loop(const std::string& why);
  bool drained_on_loop() const;
  void open_ucx();

  LinkOwner owner_;
  std::unique_ptr<Acceptor> acceptor_;                    // the loop's
  std::vector<std::byte> key_;                            // the loop's
  const std::shared_ptr<const Credentials> credentials_;  // none: TCP connections are in clear
  Loop::TimerId ticker_ = 0;
  std::optional<Error> ended_;  // the loop's: set by shutdown and abort
  const std::uint32_t process_;
  std::shared_ptr<ucx::Context> ucx_;  // nullptr: links do not use it

  mutable std::mutex mutex_;  // guards the map and Entry::link
  std::map<PeerId, Entry> entries_;
};

}  // namespace atl::transport
