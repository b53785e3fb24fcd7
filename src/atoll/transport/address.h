// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "atoll/transport/endpoint.h"

namespace atl::transport {

/// The maximum size of what PeerAddress::encode returns and decode accepts.
inline constexpr std::size_t kMaxAddressBytes = 2048;

/// The maximum number of rails of one link.
inline constexpr std::size_t kMaxRails = 8;

/// A socket address of any family, ready for the system calls.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
  std::uint16_t port() const noexcept;  ///< 0 for a Unix socket
  void set_port(std::uint16_t port) noexcept;
};

/// Returns "10.0.0.1:4711", "[fe80::1%eth0]:4711" or "unix", for messages and for PeerAddress::tcp. A mapped IPv4
/// address is shown as IPv4.
std::string to_string(const SocketAddress& address);

/// Returns the same without the port.
std::string ip_text(const SocketAddress& address);

/// Copies an IPv4 or IPv6 address that the system gave; nullopt for null and for other families.
std::optional<SocketAddress> ip_address(const sockaddr* given);

/// Parses a numeric address with a port; never queries the name service. Returns nullopt when it does not parse.
std::optional<SocketAddress> parse_tcp_address(std::string_view text);

/// Parses a numeric IPv4 or IPv6 address without a port ("10.0.0.1", "fe80::1%eth0", "[::1]").
std::optional<SocketAddress> parse_ip(std::string_view text, std::uint16_t port);

/// Returns the address of an abstract Unix socket: no file, gone with its last descriptor. `name` has at most 100
/// characters.
SocketAddress abstract_unix_address(std::string_view name);

/// Return the remote and the local end of a connected socket; length 0 when the socket is no longer connected.
SocketAddress remote_address(int fd) noexcept;
SocketAddress local_address(int fd) noexcept;

/// Returns whether both ends of a connected TCP socket have the same IP address, as they have on one host.
bool has_one_host(int fd) noexcept;

}  // namespace atl::transport
