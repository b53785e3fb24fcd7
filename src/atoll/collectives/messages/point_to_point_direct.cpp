// SPDX-License-Identifier: Apache-2.0
// Messages from device to device.
#include <algorithm>

#include "atoll/collectives/messages/point_to_point.h"

namespace atl::collectives {

using transport::ChunkRing;

transport::DirectPort* PointToPoint::direct_port(int destination, std::uint64_t bytes) const {
  if (check_data_ || bytes <= kEagerBytes) return nullptr;  // nobody compares what devices move
  return ports_.direct(destination);
}

// Under the lock, as all of this file. Both ends line messages up in the order of their grants, or their rings would wait for
// each other. The group's members name its messages alike, and no other group's so.
void PointToPoint::fly(int rank, Peer& peer, Outgoing& message) {
  auto* const port = ports_.direct(rank);
  if (!port) throw Error(ErrorKind::kProtocol, "the link to rank " + std::to_string(rank) + " takes no devices");
  message.flight = std::make_shared<Flight>();
  ++peer.not_landed;
  ++not_landed_;
  auto* const data = const_cast<std::byte*>(message.data.data());  // nobody writes there
  direct_.add({rank, port, ChunkRing::Direction::kSend, ports_.group_id() + message.id, message.origin.device, data,
               message.data.size(), nullptr, message.flight});
}

bool PointToPoint::has_flown(const Outgoing& message) {
  if (!message.flight || !message.flight->is_over()) return false;
  if (const auto problem = message.flight->problem()) throw Error(*problem);
  return true;
}

void PointToPoint::fly(Posted& posted) {
  auto* const port = ports_.direct(posted.from);
  if (!port) {
    throw Error(ErrorKind::kProtocol,
                "rank " + std::to_string(posted.from) + " announced a message between devices on a link that has none");
  }
  posted.flight = std::make_shared<Flight>();
  direct_.add({posted.from, port, ChunkRing::Direction::kReceive, ports_.group_id() + posted.message_id,
               posted.landing ? posted.landing->device() : nullptr, posted.data.data(), posted.data.size(),
               posted.landing, posted.flight});
}

// Completes what has come through rings. A flight that ended with its link is a matter of who has left, as for frames.
bool PointToPoint::land(Ready& ready) {
  bool moved = false;
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    if (!it->flight || !it->flight->is_over()) {
      ++it;
      continue;
    }
    if (const auto problem = it->flight->problem()) {
      if (problem->kind() != ErrorKind::kPeerLost) throw Error(*problem);
      ++it;
      continue;
    }
    direct_count_.fetch_add(1, std::memory_order_relaxed);
    peers_[static_cast<std::size_t>(it->from)].landed.push_back(it->message_id);
    ready.emplace_back([done = std::move(it->done), from = it->from] { done(nullptr, from); });
    it = arriving_.erase(it);
    moved = true;
  }
  return moved;
}

// The receiver may know sooner than the ring here, and leave.
void PointToPoint::accept_landed(int rank, Peer& peer, std::uint64_t id, Ready& ready) {
  const auto message =
      std::find_if(peer.outgoing.begin(), peer.outgoing.end(), [id](const Outgoing& each) { return each.id == id; });
  const bool is_known = message != peer.outgoing.end();
  if (peer.not_landed == 0 || (is_known && !message->flight)) {
    throw Error(ErrorKind::kProtocol, "rank " + std::to_string(rank) + " says that a message landed that was not sent");
  }
  --peer.not_landed;
  --not_landed_;
  direct_count_.fetch_add(1, std::memory_order_relaxed);
  if (!is_known) return;
  finish(
      message->flight, [done = std::move(message->done)] { done(nullptr); }, ready);
  peer.outgoing.erase(message);
  --outgoing_count_;
}

std::span<std::byte> PointToPoint::on_host(Posted& posted) {
  if (!posted.landing || posted.data.empty()) return posted.data;
  return {posted.landing->on_host(), posted.data.size()};
}

// `complete` follows when nothing copies from or to the message's memory.
void PointToPoint::finish(const std::shared_ptr<Flight>& flight, std::function<void()> complete, Ready& ready) {
  if (!flight || !flight->hand_over(complete)) ready.push_back(std::move(complete));
}

}  // namespace atl::collectives
