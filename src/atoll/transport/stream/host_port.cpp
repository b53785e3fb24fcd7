// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/host_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxHostName = 255;

[[noreturn]] void reject(const std::string& text, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, "\"", text.substr(0, kMaxHostName), "\" ", why,
              "; expected HOST:PORT, such as 10.0.0.2:4711, server:4711 or [::1]:4711");
}

bool is_host_character(char character) {
  const auto code = static_cast<unsigned char>(character);
  return code > ' ' && code != 0x7f && code != '[' && code != ']';
}

/// A port without a listener may be chosen for this very socket, which then connects to itself.
bool is_own_echo(int fd) {
  const auto near = local_address(fd);
  const auto far = remote_address(fd);
  return near.length == far.length && std::memcmp(&near.storage, &far.storage, near.length) == 0;
}

/// Returns 0, or the error number; throws errors that another address would not avoid.
int try_connect(const SocketAddress& address, Deadline deadline, Fd& out) {
  Fd fd = open_socket(address.family());
  if (!fd) {
    const int error = errno;
    if (error == EAFNOSUPPORT) return error;
    throw unavailable("no socket for a connection to " + to_string(address), error);
  }
  if (const int error = start_connecting(fd.get(), address); error != 0 && error != EINPROGRESS) return error;
  if (const int error = wait_ready(fd.get(), POLLOUT, deadline); error != 0) return error;
  if (const int error = take_error(fd.get()); error != 0) return error;
  if (is_own_echo(fd.get())) return ECONNREFUSED;
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  out = std::move(fd);
  return 0;
}

}  // namespace

std::string to_string(const HostPort& place) {
  const bool bare = place.host.find(':') != std::string::npos && place.host.front() != '[';
  return (bare ? "[" + place.host + "]" : place.host) + ":" + std::to_string(place.port);
}

HostPort parse_host_port(const std::string& text) {
  if (text.find("://") != std::string::npos) reject(text, "is a URL, not an address");
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) reject(text, "has no port");
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) reject(text, "has no host");
  if (!bracketed && host.find(':') != std::string::npos) reject(text, "is an IPv6 address without brackets");
  if (host.size() > kMaxHostName || !std::all_of(host.begin(), host.end(), is_host_character))
    reject(text, "has no valid host");
  const auto port = to_number<std::uint16_t>(std::string_view(text).substr(colon + 1));
  if (!port) reject(text, "does not end with a port between 0 and 65535");
  return {host, *port};
}

std::vector<SocketAddress> resolve_host(const std::string& host, std::uint16_t port) {
  if (const auto numeric = parse_ip(host, port)) return {*numeric};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  const int error = errno;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = failure == 0 ? list : nullptr; entry != nullptr; entry = entry->ai_next) {
    auto address = ip_address(entry->ai_addr);
    if (!address) continue;
    address->set_port(port);
    found.push_back(*address);
  }
  if (!found.empty()) return found;
  const std::string what = "unknown host \"" + host + "\"";
  if (failure == EAI_SYSTEM) throw Error(ErrorKind::kUnavailable, with_errno(what, error));
  throw Error(ErrorKind::kUnavailable, what + (failure != 0 ? std::string(": ") + ::gai_strerror(failure) : ""));
}

int wait_ready(int fd, short events, Deadline deadline) {
  constexpr milliseconds kMaxPoll{60'000};
  for (;;) {
    pollfd ready{fd, events, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline.remaining(kMaxPoll));
    const int count = ::poll(&ready, 1, static_cast<int>(left.count()));
    if (count > 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
    if (deadline.expired()) return ETIMEDOUT;
  }
}

Fd connect_tcp(const std::string& host, std::uint16_t port, milliseconds timeout) {
  timeout = std::max(timeout, milliseconds(0));
  const Deadline deadline = Deadline::after(timeout);
  const auto addresses = resolve_host(host, port);
  std::string reasons;
  bool timed_out = false;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    // An address that does not answer must leave time for the others.
    const auto tries = static_cast<std::int64_t>(addresses.size() - i);
    Fd fd;
    const int error = try_connect(addresses[i], Deadline::after(deadline.remaining(timeout) / tries), fd);
    if (error == 0) return fd;
    timed_out = timed_out || error == ETIMEDOUT;
    reasons += (reasons.empty() ? "" : "; ") + with_errno(to_string(addresses[i]), error);
  }
  const std::string who = to_string(HostPort{host, port});
  if (timed_out) throw Error(ErrorKind::kTimeout, "connecting to ", who, " within ", timeout.count(), " ms: ", reasons);
  throw Error(ErrorKind::kPeerLost, "cannot connect to " + who + ": " + reasons);
}

}  // namespace atl::transport
