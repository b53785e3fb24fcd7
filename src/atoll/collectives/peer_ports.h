// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "atoll/transport/endpoint.h"

namespace atl::collectives {

/// The flows of a group between two ranks, with their channel index on the link.
enum class Port : std::uint32_t { kUp = 0, kDown = 1, kMessages = 2 };
inline constexpr std::size_t kPortCount = 3;

/// A group's channels by peer rank. A link opens when one of its channels is first requested. Thread-safe; looking up
/// an open channel costs one atomic load.
class PeerPorts {
 public:
  PeerPorts(transport::Endpoint& endpoint, std::uint64_t group_id, std::vector<transport::PeerAddress> members,
            int rank);

  /// Closes the group's channels on this side.
  virtual ~PeerPorts();
  PeerPorts(const PeerPorts&) = delete;
  PeerPorts& operator=(const PeerPorts&) = delete;

  transport::Channel& open(int peer, Port port);

  /// Opens the link to `peer` without a channel, so that each process notices the end of the other.
  void watch(int peer);

  /// Returns the link to `peer` if this group has opened one, else nullptr.
  transport::Link* link_if_open(int peer) const noexcept;

  /// Returns Link::direct of that link, or nullptr if there is none. Virtual for tests, which provide their own port.
  virtual transport::DirectPort* direct(int peer) const noexcept;

  /// Returns " (no connection to 10.0.0.2:4711 yet)" while the link to `peer` is being opened, else "".
  std::string missing_link(int peer) const;

  /// Returns the rank of the member with this id, or -1.
  int rank_of(const transport::PeerId& id) const noexcept;

  /// Returns "rank 3".
  const std::string& name(int peer) const noexcept { return members_[static_cast<std::size_t>(peer)].name; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  int rank() const noexcept { return rank_; }
  std::uint64_t group_id() const noexcept { return group_id_; }
  transport::Endpoint& endpoint() noexcept { return endpoint_; }

  /// Returns the number of members that run on this host, this rank included.
  std::size_t members_on_this_host() const noexcept;

 private:
  struct Entry {
    std::atomic<transport::Link*> link{nullptr};
    std::array<std::atomic<transport::Channel*>, kPortCount> channels{};
  };

  transport::Endpoint& endpoint_;
  const std::uint64_t group_id_;
  const std::vector<transport::PeerAddress> members_;
  const int rank_;
  std::unique_ptr<Entry[]> entries_;
};

}  // namespace atl::collectives
