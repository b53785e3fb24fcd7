// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

// What every user of stream sockets does with the system.
namespace atl::transport {

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

/// The maximum number of descriptors in one message.
inline constexpr std::size_t kMaxDescriptors = 4;

/// Sends bytes with at most kMaxDescriptors descriptors over a connected Unix stream socket, without waiting. Returns
/// as sendmsg does; the first bytes take all descriptors with them.
ssize_t send_with(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

/// Receives what is there, and appends the descriptors that came with it. Returns as recvmsg does. Throws
/// Error(kUnavailable) if this process had no free descriptor for one of them; those that came are appended all the
/// same.
ssize_t receive_with(int socket, std::span<std::byte> into, std::vector<Fd>& descriptors);

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
