// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <stdexcept>

#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/handshake/handshake.h"
#include "tests/support/peers.h"

namespace atl::test {

using transport::Handshake;

RawPeer::RawPeer(const std::string& address) {
  const auto target = transport::parse_tcp_address(address);
  if (!target) throw std::runtime_error("bad address " + address);
  fd_ = Fd(::socket(target->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_ || ::connect(fd_.get(), target->get(), target->length) != 0)
    throw std::runtime_error("cannot connect to " + address);
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::size_t RawPeer::receive(std::span<std::byte> into) {
  pollfd ready{fd_.get(), POLLIN, 0};
  const auto limit = static_cast<int>(std::chrono::milliseconds(kPatience).count());
  if (::poll(&ready, 1, limit) <= 0) throw std::runtime_error("the endpoint says nothing");
  const auto got = ::recv(fd_.get(), into.data(), into.size(), 0);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

void RawPeer::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return;  // the endpoint has closed: wait_for_end reports it
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void RawPeer::shake_hands(const transport::EndpointOptions& options, const transport::PeerAddress& self,
                          const transport::PeerId& target, std::uint8_t rail) {
  auto handshake =
      Handshake::initiator({options.job, options.attempt, self, options.key, transport::LinkKind::kTcp, rail}, target);
  std::array<std::byte, transport::kMaxHandshakeBytes> buffer;
  while (handshake.state() != Handshake::State::kDone) {
    send(handshake.take_output());
    const std::size_t got = receive(std::span(buffer).first(std::min(buffer.size(), handshake.wanted())));
    if (got == 0) throw std::runtime_error("the endpoint ended the handshake");
    handshake.receive(std::span(buffer).first(got));
  }
}

std::vector<std::byte> RawPeer::receive_exactly(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t got = receive(std::span(all).subspan(done));
    if (got == 0) throw std::runtime_error("the endpoint ended the stream");
    done += got;
  }
  return all;
}

bool RawPeer::wait_for_end() {
  std::array<std::byte, 4096> buffer;
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.expired()) {
    if (receive(buffer) == 0) return true;
  }
  return false;
}

transport::PeerAddress silent_peer(const std::string& name) {
  transport::PeerAddress address;
  transport::fill_random(std::as_writable_bytes(std::span(address.id.bytes)));
  address.host = "elsewhere";
  address.name = name;
  return address;
}

}  // namespace atl::test
