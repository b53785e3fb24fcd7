// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/transport/stream/byte_stream.h"

namespace atl::fuzz {

/// A link's stream inside TLS, and bytes of an attacker on a socket. The first byte chooses the role, whether the
/// handshake is over, and whether the connection ends after the bytes. Whatever the bytes are, nothing opens and
/// nothing is delivered.
inline void byte_stream(std::span<const std::byte> bytes) {
  using namespace transport;
  using Progress = ByteStream::Progress;
  constexpr std::size_t kMax = std::size_t{60} << 10;  // what a socket takes at once
  if (bytes.empty()) return;
  static const auto credentials = Credentials::of_key(std::vector<std::byte>(32));
  const auto choice = std::to_integer<unsigned>(bytes.front());
  bytes = bytes.subspan(1);
  bytes = bytes.first(std::min(bytes.size(), kMax));
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) != 0) std::abort();
  ByteStream subject{Fd(sockets[0])};
  ByteStream other{Fd(sockets[1])};
  const bool is_client = (choice & 1U) != 0;
  const bool is_open = (choice & 2U) != 0;
  subject.secure(credentials, is_client ? TlsRole::kClient : TlsRole::kServer, "other");
  other.secure(credentials, is_client ? TlsRole::kServer : TlsRole::kClient, "subject");
  try {
    if (is_open) {
      auto mine = Progress::kWaits;
      auto theirs = Progress::kWaits;
      for (int flight = 0; flight < 4; ++flight) {
        if (mine != Progress::kOpen) mine = subject.handshake();
        if (theirs != Progress::kOpen) theirs = other.handshake();
      }
      if (mine != Progress::kOpen || theirs != Progress::kOpen) std::abort();
    }
    if (::send(other.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      std::abort();
    if ((choice & 4U) != 0) ::shutdown(other.fd(), SHUT_WR);
    if (!is_open) {
      if (subject.handshake() == Progress::kOpen) std::abort();
    } else {
      std::array<std::byte, 5000> plain;
      const std::array<iovec, 2> pieces{iovec{plain.data(), 1000}, iovec{plain.data() + 1000, 4000}};
      bool drained = false;
      if (subject.read(pieces, &drained) > 0) std::abort();
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol && error.kind() != ErrorKind::kRefused &&
        (is_open || error.kind() != ErrorKind::kPeerLost)) {
      std::abort();
    }
  }
  subject.close();
}

}  // namespace atl::fuzz
