// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/stream/credentials.h"
#include "atoll/transport/stream/tls_session.h"

// A TLS session and bytes of an attacker without the key, for libFuzzer and for a test that does the same with mutated
// bytes.
namespace atl::fuzz {

inline void move_output(transport::TlsSession& from, transport::TlsSession& to, std::vector<std::byte>& keep) {
  keep = std::exchange(from.output(), {});
  to.give(keep);
}

/// Completes the handshake between the two.
inline void complete_handshake(transport::TlsSession& client, transport::TlsSession& server) {
  std::vector<std::byte> keep;
  static_cast<void>(client.handshake());
  move_output(client, server, keep);
  static_cast<void>(server.handshake());
  move_output(server, client, keep);
  if (!client.handshake()) std::abort();
  move_output(client, server, keep);
  if (!server.handshake()) std::abort();
  server.give({});
}

/// The first byte chooses the role, whether the handshake is over, and how the rest is cut. Whatever the bytes are, no
/// handshake completes, no byte is delivered, and errors blame only the other end.
inline void tls(std::span<const std::byte> bytes) {
  using namespace transport;
  if (bytes.empty()) return;
  static const auto credentials = Credentials::of_key(std::vector<std::byte>(32));
  const auto choice = std::to_integer<unsigned>(bytes.front());
  const bool is_client = (choice & 1U) != 0;
  const bool is_open = (choice & 2U) != 0;
  const std::size_t piece = 1 + 8 * std::size_t{choice >> 2};
  TlsSession subject(credentials, is_client ? TlsRole::kClient : TlsRole::kServer, "subject", "");
  TlsSession other(credentials, is_client ? TlsRole::kServer : TlsRole::kClient, "other", "");
  if (is_open) complete_handshake(is_client ? subject : other, is_client ? other : subject);
  if (is_client && !is_open) static_cast<void>(subject.handshake());
  std::array<std::byte, 1024> plain;
  try {
    for (auto rest = bytes.subspan(1); !rest.empty();) {
      const std::size_t count = std::min(piece, rest.size());
      subject.give(rest.first(count));
      rest = rest.subspan(count);
      if (is_open ? subject.read(plain) != 0 || subject.has_ended() : subject.handshake()) std::abort();
      if (!subject.rest().empty()) std::abort();
    }
  } catch (const Error& error) {
    const auto kind = error.kind();
    if (kind != ErrorKind::kProtocol && kind != ErrorKind::kRefused && kind != ErrorKind::kPeerLost) std::abort();
    if (is_open && kind == ErrorKind::kPeerLost) std::abort();
  }
  if (subject.output().size() > 8192) std::abort();
}

}  // namespace atl::fuzz
