// SPDX-License-Identifier: Apache-2.0
// Messages from device to device.
#include <algorithm>

#include "atoll/collectives/messages/point_to_point.h"

namespace atl::collectives {

using transport::ChunkRing;

transport::DirectPort* PointToPoint::direct_port(int destination, std::uint64_t bytes) const {
  if (check_data_ || bytes <= kEagerBytes) return nullptr;  // direct transfers have no checksums
  return ports_.direct(destination);
}

// Called under the lock, as is everything in this file. Both ends queue messages in the order of their grants;
// otherwise their rings would wait for each other. Members derive equal message numbers, which differ from those of
// other groups.
void PointToPoint::start_direct(int rank, Peer& peer, Outgoing& message) {
  auto* const port = ports_.direct(rank);
  if (!port)
    throw Error(ErrorKind::kProtocol, "the link to rank " + std::to_string(rank) + " does not support device memory");
  message.transfer = std::make_shared<TransferStatus>();
  ++peer.not_landed;
  ++not_landed_;
  auto* const data = const_cast<std::byte*>(message.data.data());  // a send does not write to it
  direct_.add({rank, port, ChunkRing::Direction::kSend, ports_.group_id() + message.id, message.origin.device, data,
               message.data.size(), nullptr, message.transfer});
}

bool PointToPoint::is_transferred(const Outgoing& message) {
  if (!message.transfer || !message.transfer->is_over()) return false;
  if (const auto problem = message.transfer->problem()) throw Error(*problem);
  return true;
}

void PointToPoint::start_direct(Posted& posted) {
  auto* const port = ports_.direct(posted.from);
  if (!port) broken_by(posted.from, "announced a message between devices on a link that does not support them");
  posted.transfer = std::make_shared<TransferStatus>();
  direct_.add({posted.from, port, ChunkRing::Direction::kReceive, ports_.group_id() + posted.message_id,
               posted.landing ? posted.landing->device() : nullptr, posted.data.data(), posted.data.size(),
               posted.landing, posted.transfer});
}

// Completes receives whose message has come through a ring. A transfer that failed with its link is left to fail_left()
// and fail_pending(), as for frames.
bool PointToPoint::finish_direct(Ready& ready) {
  bool moved = false;
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    const bool is_over = it->transfer && it->transfer->is_over();
    const auto problem = is_over ? it->transfer->problem() : std::nullopt;
    if (problem && problem->kind() != ErrorKind::kPeerLost) throw Error(*problem);
    if (!is_over || problem) {
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

// The receiver may report the arrival before the ring on this side notices it, and leave.
void PointToPoint::accept_landed(int rank, Peer& peer, std::uint64_t id, Ready& ready) {
  const auto message = std::ranges::find(peer.outgoing, id, &Outgoing::id);
  const bool is_known = message != peer.outgoing.end();
  if (peer.not_landed == 0 || (is_known && !message->transfer))
    broken_by(rank, "reported the arrival of a message that was not sent");
  --peer.not_landed;
  --not_landed_;
  direct_count_.fetch_add(1, std::memory_order_relaxed);
  if (!is_known) return;
  finish(
      message->transfer, [done = std::move(message->done)] { done(nullptr); }, ready);
  peer.outgoing.erase(message);
  --outgoing_count_;
}

std::span<std::byte> PointToPoint::on_host(Posted& posted) {
  if (!posted.landing || posted.data.empty()) return posted.data;
  return {posted.landing->on_host(), posted.data.size()};
}

// Calls `complete` when nothing copies from or to the message's memory any more.
void PointToPoint::finish(const std::shared_ptr<TransferStatus>& transfer, std::function<void()> complete,
                          Ready& ready) {
  if (!transfer || !transfer->notify_at_end(complete)) ready.push_back(std::move(complete));
}

}  // namespace atl::collectives
