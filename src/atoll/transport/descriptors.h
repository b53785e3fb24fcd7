// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "atoll/core/fd.h"

// Descriptors that travel over Unix sockets (SCM_RIGHTS).
namespace atl::transport {

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
