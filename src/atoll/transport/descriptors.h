// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "atoll/core/fd.h"

// Descriptors that travel over Unix sockets (SCM_RIGHTS).
namespace atl::transport {

/// The maximum number of descriptors in one message.
inline constexpr std::size_t kMaxDescriptors = 4;

/// The ancillary part of a msghdr: room for kMaxDescriptors descriptors. Must outlive the system call.
class DescriptorSpace {
 public:
  /// Puts the descriptors, at most kMaxDescriptors, into a message to be sent; none: nothing.
  void put_into(msghdr& message, std::span<const int> descriptors) noexcept;

  /// Makes room in a message to be received.
  void offer_to(msghdr& message) noexcept;

  /// Appends the descriptors that came with a received message. Throws Error(kUnavailable) if this process had no free
  /// descriptor for one of them; those that came are appended all the same.
  static void take_from(const msghdr& message, std::vector<Fd>& descriptors);

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> space_{};
};

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
