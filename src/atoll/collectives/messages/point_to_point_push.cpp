// SPDX-License-Identifier: Apache-2.0
// Sends messages, grants and credit to a peer.
#include <algorithm>

#include "atoll/collectives/checksum.h"
#include "atoll/collectives/messages/point_to_point.h"
#include "atoll/core/bytes.h"

namespace atl::collectives {

bool PointToPoint::send_checked(Peer& peer, transport::FrameHeader& header, std::span<const std::byte> data) const {
  if (check_data_ && !data.empty()) header.checksum = checksum_of(data);
  return peer.channel->try_send(header, data);
}

bool PointToPoint::push_control(Peer& peer) {
  bool moved = false;
  while (!peer.grants.empty() && peer.channel->try_send(header(FrameKind::kGrant, peer.grants.front()), {})) {
    peer.grants.pop_front();
    --peer.announced_held;
    moved = true;
  }
  while (!peer.turned_down.empty()) {
    const auto& [id, why] = peer.turned_down.front();
    auto answer = header(FrameKind::kTurnedDown, id);
    answer.payload_bytes = static_cast<std::uint32_t>(why.size());
    if (!send_checked(peer, answer, as_byte_span(why))) break;
    peer.turned_down.pop_front();
    --peer.announced_held;
    moved = true;
  }
  while (!peer.landed.empty() && peer.channel->try_send(header(FrameKind::kLanded, peer.landed.front()), {})) {
    peer.landed.pop_front();
    moved = true;
  }
  if (peer.consumed > 0) {
    auto credit = header(FrameKind::kConsumed, 0);
    credit.count = peer.consumed;
    if (peer.channel->try_send(credit, {})) {
      peer.eager_held -= peer.consumed;
      peer.consumed = 0;
      moved = true;
    }
  }
  return moved;
}

// Sends a notice in place of a message whose send was refused.
bool PointToPoint::start_refused(Peer& peer, Outgoing& message) {
  const auto why = as_byte_span(message.refusal);
  if (peer.eager_in_flight + eager_cost(why.size()) > kEagerBudget) return false;
  auto only = header(FrameKind::kWithdrawn, message.tag);
  only.count = why.size();
  only.sequence = message.id;
  only.payload_bytes = static_cast<std::uint32_t>(why.size());
  if (!send_checked(peer, only, why)) return false;
  peer.eager_in_flight += eager_cost(why.size());
  return true;
}

// Sends the first frame of a message: all of it, or its announcement.
bool PointToPoint::start(Peer& peer, Outgoing& message, bool* finished) {
  if (!message.refusal.empty()) return *finished = start_refused(peer, message);
  const bool fits = !message.origin.device && message.data.size() <= kEagerBytes &&
                    message.loaded() == message.data.size() &&
                    peer.eager_in_flight + eager_cost(message.data.size()) <= kEagerBudget;
  if (!fits && peer.announced_in_flight >= kAnnouncedBudget) return false;
  const auto announce = message.origin.device ? FrameKind::kAnnounceDirect : FrameKind::kAnnounce;
  auto first = header(fits ? FrameKind::kMessage : announce, message.tag);
  first.dtype = static_cast<std::uint8_t>(message.dtype);
  first.count = message.data.size();
  first.sequence = message.id;
  first.payload_bytes = fits ? static_cast<std::uint32_t>(message.data.size()) : 0;
  if (!send_checked(peer, first, fits ? message.data : std::span<const std::byte>{})) return false;
  if (fits) peer.eager_in_flight += eager_cost(message.data.size());
  if (!fits) ++peer.announced_in_flight;
  message.announced = true;
  *finished = fits;
  return true;
}

bool PointToPoint::stream(Peer& peer, Outgoing& message) {
  bool moved = false;
  const std::uint64_t loaded = message.loaded();
  while (message.sent < loaded) {
    const auto bytes = std::min<std::uint64_t>(loaded - message.sent, peer.channel->max_payload());
    auto part = header(FrameKind::kPayload, message.id);
    part.offset = message.sent;
    part.payload_bytes = static_cast<std::uint32_t>(bytes);
    if (!send_checked(peer, part, message.data.subspan(message.sent, bytes))) break;
    message.sent += bytes;
    moved = true;
  }
  return moved;
}

bool PointToPoint::push(Peer& peer, Ready& ready) {
  bool moved = push_control(peer);
  for (auto it = peer.outgoing.begin(); it != peer.outgoing.end();) {
    bool finished = false;
    if (!it->announced) {
      if (!start(peer, *it, &finished)) break;  // later messages must not overtake this one
      moved = true;
    } else if (it->granted) {
      if (!it->origin.device) moved |= stream(peer, *it);
      finished = it->origin.device ? is_transferred(*it) : it->sent == it->data.size();
      moved |= finished;
    }
    if (!finished) {
      ++it;
      continue;
    }
    ready.emplace_back([done = std::move(it->done)] { done(nullptr); });
    it = peer.outgoing.erase(it);
    --outgoing_count_;
  }
  return moved;
}

}  // namespace atl::collectives
