// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/peer_ports.h"

namespace atl::collectives {
namespace {

transport::ChannelId channel_id(std::uint64_t group, Port port) {
  const auto bell = port == Port::kMessages ? transport::Bell::kPointToPoint : transport::Bell::kCollective;
  return {group, static_cast<std::uint32_t>(port), bell};
}

}  // namespace

PeerPorts::PeerPorts(transport::Endpoint& endpoint, std::uint64_t group_id, std::vector<transport::PeerAddress> members,
                     int rank)
    : endpoint_(endpoint),
      group_id_(group_id),
      members_(std::move(members)),
      rank_(rank),
      entries_(std::make_unique<Entry[]>(members_.size())) {}

// Also over links that this group has not used: a peer may have opened channels there, or still do so.
PeerPorts::~PeerPorts() {
  for (transport::Link* const link : endpoint_.links()) {
    if (rank_of(link->peer()) < 0) continue;
    for (std::size_t port = 0; port < kPortCount; ++port)
      link->close_channel(channel_id(group_id_, static_cast<Port>(port)));
  }
}

transport::Channel& PeerPorts::open(int peer, Port port) {
  Entry& entry = entries_[static_cast<std::size_t>(peer)];
  auto& slot = entry.channels[static_cast<std::size_t>(port)];
  if (transport::Channel* channel = slot.load(std::memory_order_acquire)) return *channel;
  // Two threads may get here at once: the endpoint returns the same link and the same channel to both.
  transport::Link& link = endpoint_.link(members_[static_cast<std::size_t>(peer)]);
  entry.link.store(&link, std::memory_order_release);
  transport::Channel& channel = link.channel(channel_id(group_id_, port));
  slot.store(&channel, std::memory_order_release);
  return channel;
}

void PeerPorts::watch(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  entries_[index].link.store(&endpoint_.link(members_[index]), std::memory_order_release);
}

transport::Link* PeerPorts::link_if_open(int peer) const noexcept {
  return entries_[static_cast<std::size_t>(peer)].link.load(std::memory_order_acquire);
}

transport::DirectPort* PeerPorts::direct(int peer) const noexcept {
  transport::Link* const link = link_if_open(peer);
  return link ? link->direct() : nullptr;
}

std::string PeerPorts::missing_link(int peer) const {
  const transport::Link* link = link_if_open(peer);
  if (!link || link->state() != transport::LinkState::kConnecting) return "";
  std::string where;
  if (link->kind() != transport::LinkKind::kShm) {
    for (const std::string& address : members_[static_cast<std::size_t>(peer)].tcp) {
      where += (where.empty() ? " to " : ", ") + address;
    }
  }
  return " (no connection" + where + " yet)";
}

int PeerPorts::rank_of(const transport::PeerId& id) const noexcept {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

std::size_t PeerPorts::members_on_this_host() const noexcept {
  std::size_t count = 0;
  for (const auto& member : members_) count += member.host == members_[static_cast<std::size_t>(rank_)].host ? 1 : 0;
  return count;
}

}  // namespace atl::collectives
