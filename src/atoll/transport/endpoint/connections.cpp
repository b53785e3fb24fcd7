// SPDX-License-Identifier: Apache-2.0
// Decides which of two connections between a pair of processes becomes their link: the endpoint's callbacks from its
// acceptor and connectors. All of it runs on the loop.
#include "atoll/transport/endpoint/impl.h"

#include <utility>

namespace atl::transport {

// When both sides connect at once, each side sees its own connection and the peer's. The smaller id's connection wins:
//  - the side with the larger id accepts the peer's as soon as it is proven, and gives up its own;
//  - the side with the smaller id must not accept the peer's once its own proof has left, because the peer may already
//    have accepted it. It holds the peer's until its own succeeds (then it refuses the peer's) or fails (then it takes
//    the peer's).
void Endpoint::Impl::on_incoming_proven(HandshakeStream& stream) {
  const PeerAddress& peer = stream.peer();
  if (ended_) return acceptor_->refuse(stream, Refusal::kGone);
  if (stream.rail() != 0) {
    Entry* const open = find(peer.id);
    const bool is_taken = open != nullptr && open->attached && open->link->takes_rail_on_loop(stream.rail() - 1U);
    return is_taken ? stream.welcome() : acceptor_->refuse(stream, Refusal::kGone);
  }
  if (peer.id == self.id) return acceptor_->refuse(stream, Refusal::kPeer);
  const auto kind = choose_kind(self, peer);
  if (!kind || stream_of(*kind) != stream.kind()) return acceptor_->refuse(stream, Refusal::kTransport);
  bool made = false;
  Entry& entry = find_or_make(peer, &made);
  if (stream_of(entry.link->kind()) != stream.kind()) return acceptor_->refuse(stream, Refusal::kTransport);
  const LinkState state = entry.link->state();
  if (state == LinkState::kFailed || state == LinkState::kClosed) return acceptor_->refuse(stream, Refusal::kGone);
  if (entry.attached || entry.held != nullptr) return acceptor_->refuse(stream, Refusal::kYield);
  if (entry.connector && self.id < peer.id && entry.connector->may_be_accepted()) {
    entry.held = &stream;
    return;
  }
  entry.connector.reset();
  stream.welcome();
}

void Endpoint::Impl::on_incoming(std::uint8_t rail, ByteStream stream, const PeerAddress& authenticated) {
  Entry* entry = find(authenticated.id);
  if (rail != 0) return entry->link->attach_rail_on_loop(rail - 1U, std::move(stream));
  if (entry == nullptr || entry->attached)
    return;  // welcomed twice only if the peer broke the protocol: closing is enough
  attach_on_loop(*entry, std::move(stream), false, authenticated);
}

void Endpoint::Impl::on_incoming_gone(const HandshakeStream& stream) {
  for (Entry* entry : entries()) {
    if (entry->held == &stream) entry->held = nullptr;
  }
}

void Endpoint::Impl::on_connected(const PeerId& peer, ByteStream stream, const PeerAddress& authenticated) {
  Entry& entry = *find(peer);
  const auto finished = std::move(entry.connector);
  if (entry.held != nullptr) acceptor_->refuse(*entry.held, Refusal::kYield);
  attach_on_loop(entry, std::move(stream), true, authenticated);
}

void Endpoint::Impl::attach_on_loop(Entry& entry, ByteStream stream, bool initiator, const PeerAddress& authenticated) {
  entry.attached = true;
  if (entry.link->state() != LinkState::kConnecting) return;
  try {
    entry.link->attach_on_loop(std::move(stream), initiator, authenticated);
    if (ended_) return entry.link->begin_shutdown_on_loop();
    connect_rails_on_loop(entry);
  } catch (const Error& error) {
    entry.link->fail_on_loop(error);
  }
}

void Endpoint::Impl::connect_rails_on_loop(Entry& entry) {
  const auto now = Clock::now();
  while (!ended_ && entry.link->state() == LinkState::kUp) {
    const auto wanted = entry.link->next_rail_on_loop(now);
    if (!wanted) return;
    entry.rails.push_back(std::make_unique<RailConnector>(*loop, static_cast<RailConnector::Owner&>(*this), options,
                                                          entry.address, *wanted));
    const auto rail = static_cast<std::uint8_t>(wanted->rail + 1);
    entry.rails.back()->begin([&] { return Handshake::initiator(identity(LinkKind::kTcp, rail), entry.address.id); });
  }
}

void Endpoint::Impl::on_rail_connected(const RailConnector& connector, ByteStream stream) {
  Entry& entry = *find(connector.peer());
  const std::size_t rail = connector.rail();
  std::erase_if(entry.rails, [&](const auto& each) { return each.get() == &connector; });
  entry.link->attach_rail_on_loop(rail, std::move(stream));
}

void Endpoint::Impl::on_rail_failed(const RailConnector& connector, const Error& error) {
  Entry& entry = *find(connector.peer());
  const std::size_t rail = connector.rail();
  std::erase_if(entry.rails, [&](const auto& each) { return each.get() == &connector; });
  entry.link->rail_unreachable_on_loop(rail, error);
}

bool Endpoint::Impl::on_attempt_failed(const PeerId& peer) {
  Entry& entry = *find(peer);
  if (entry.held == nullptr) return true;
  const auto finished = std::move(entry.connector);
  entry.held->welcome();
  return false;
}

void Endpoint::Impl::on_connect_failed(const PeerId& peer, const Error& error) {
  Entry& entry = *find(peer);
  const auto finished = std::move(entry.connector);
  ended_ ? entry.link->close_on_loop(*ended_) : entry.link->fail_on_loop(error);
}

void Endpoint::Impl::on_yielded(const PeerId& peer) {
  // The peer's connection is on its way; if it does not arrive, the tick connects again.
  find(peer)->connector.reset();
}

}  // namespace atl::transport
