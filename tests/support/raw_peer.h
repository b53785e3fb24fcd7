// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/endpoint.h"

namespace atl::test {

/// A channel that a raw peer opens, and the window that it states for it, which is also that of peer_options().
inline const transport::ChannelId kRawChannel{.group = 5, .index = 1, .bell = transport::Bell::kCollective};
inline constexpr std::uint64_t kRawWindow = 65536;

/// A blocking TCP connection to an endpoint that sends whatever a test wants. Calls throw std::runtime_error after
/// kPatience.
class RawPeer {
 public:
  /// `address` is "127.0.0.1:4711" or "[::1]:4711".
  explicit RawPeer(const std::string& address);

  /// Authenticates as a peer of that endpoint's job would. With `rail`, joins an open link as rail - 1. Throws
  /// Error(kRefused).
  void shake_hands(const transport::EndpointOptions& options, const transport::PeerAddress& self,
                   const transport::PeerId& target, std::uint8_t rail = 0);

  void send(std::span<const std::byte> bytes);

  /// Sends a whole message of the link: prefix and body.
  template <class Prefix>
  void send(const Prefix& prefix, std::span<const std::byte> body) {
    send(std::as_bytes(std::span(&prefix, 1)));
    send(body);
  }

  /// Returns the next `bytes` bytes that the endpoint sends.
  std::vector<std::byte> receive_exactly(std::size_t bytes);

  /// Reads up to the end of the stream; false if the endpoint does not end it within kPatience.
  bool wait_for_end();

 private:
  std::size_t receive(std::span<std::byte> into);

  Fd fd_;
};

/// Returns the address of a peer that listens nowhere.
transport::PeerAddress silent_peer(const std::string& name);

}  // namespace atl::test
