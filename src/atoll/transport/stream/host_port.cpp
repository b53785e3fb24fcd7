// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/host_port.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <memory>

#include "atoll/core/error.h"

namespace atl::transport {

namespace {

constexpr std::size_t kMaxHostName = 255;

[[noreturn]] void reject(const std::string& text, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument,
              "\"" + text.substr(0, kMaxHostName) + "\" " + why +
                  "; expected HOST:PORT, such as 10.0.0.2:4711, server:4711 or [::1]:4711");
}

bool is_host_character(char character) {
  const auto code = static_cast<unsigned char>(character);
  return code > ' ' && code != 0x7f && code != '[' && code != ']';
}

std::uint16_t parse_port(const std::string& text, const std::string& digits) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    reject(text, "does not end with a port between 0 and 65535");
  }
  return port;
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
  return {host, parse_port(text, text.substr(colon + 1))};
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
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    address.length = entry->ai_addrlen;
    std::copy_n(reinterpret_cast<const std::byte*>(entry->ai_addr), address.length,
                reinterpret_cast<std::byte*>(&address.storage));
    address.set_port(port);
    found.push_back(address);
  }
  if (!found.empty()) return found;
  const std::string what = "unknown host \"" + host + "\"";
  if (failure == EAI_SYSTEM) throw Error(ErrorKind::kUnavailable, with_errno(what, error));
  throw Error(ErrorKind::kUnavailable, what + (failure != 0 ? std::string(": ") + ::gai_strerror(failure) : ""));
}

}  // namespace atl::transport
