// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/core/fd.h"
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

// What every user of stream sockets does with the system.

/// Sets an option of a socket that is an int. A kernel that lacks the option keeps its own choice.
void set_option(int fd, int level, int option, int value);

/// Returns the number of the error that broke the connection, or with which connect() failed, and clears it; 0: none.
int take_error(int fd);

/// Returns the process at the other end of a connected Unix socket; 0: not known.
pid_t peer_process(int fd) noexcept;

// These make non-blocking sockets, closed on exec. An empty Fd: errno says why.

Fd open_socket(int family);
Fd try_listen(const SocketAddress& address);
Fd accept_from(int listener);

/// Returns whether accept_from failed for lack of descriptors or memory: the waiting connection would wake the loop
/// forever, so stop listening for a moment.
bool lacks_resources(int error_number) noexcept;

/// Starts to connect. Returns 0 if the socket is connected, EINPROGRESS if that takes time, or the number of the error.
int start_connecting(int fd, const SocketAddress& to);

/// Sends a few bytes with descriptors over a connected Unix stream socket, without waiting. Returns false if the socket
/// did not take all of them.
bool send_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

/// What send_descriptors() sends.
struct ReceivedDescriptors {
  std::vector<std::byte> bytes;
  std::vector<Fd> descriptors;
};

/// Receives what one send_descriptors() of `bytes` bytes has sent, without waiting; none if nothing is there yet.
/// Throws Error(kPeerLost) if the other end is closed, and Error(kProtocol) for another number of bytes.
std::optional<ReceivedDescriptors> receive_descriptors(int socket, std::size_t bytes);

}  // namespace atl::transport
