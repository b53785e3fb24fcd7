// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl::transport {

namespace {

constexpr std::uint8_t kAddressFormat = 2;
constexpr std::size_t kMaxEncodedHost = 256;
constexpr std::size_t kMaxUnixName = 100;
constexpr std::size_t kMaxName = 256;
constexpr std::size_t kMaxTcp = 8;
constexpr std::size_t kMaxTcpText = 80;

sockaddr_in& as_v4(SocketAddress& address) { return reinterpret_cast<sockaddr_in&>(address.storage); }
sockaddr_in6& as_v6(SocketAddress& address) { return reinterpret_cast<sockaddr_in6&>(address.storage); }
const sockaddr_in& as_v4(const SocketAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& as_v6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

/// Returns the index for "eth0" or "2", or 0 for an unknown interface.
std::uint32_t scope_of(const std::string& text) {
  const auto index = to_number<std::uint32_t>(text);
  return index ? *index : if_nametoindex(text.c_str());
}

SocketAddress end_of(int fd, int (*look)(int, sockaddr*, socklen_t*)) noexcept {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (look(fd, address.get(), &address.length) != 0) address = {};
  return address;
}

[[noreturn]] void refuse_address(const std::string& why) {
  throw Error(ErrorKind::kProtocol, "a peer's address " + why);
}

/// Reads one of the values up to `last`; `problem` is for the error.
template <class Enum>
Enum read_enum(Enum last, const char* problem, ByteReader& reader) {
  const auto value = reader.integer<std::uint8_t>();
  if (value > static_cast<std::uint8_t>(last)) refuse_address(problem + (" " + std::to_string(value)));
  return static_cast<Enum>(value);
}

void read_rails(ByteReader& reader, PeerAddress& address) {
  address.rails_are_stated = reader.integer<std::uint8_t>() != 0;
  const std::size_t count = reader.integer<std::uint8_t>();
  if (count > kMaxRails) refuse_address("lists too many rails");
  for (std::size_t i = 0; i < count; ++i) {
    address.rails.push_back({.tcp = reader.string(kMaxTcpText),
                             .network_bits = reader.integer<std::uint8_t>(),
                             .distance = reader.integer<std::uint8_t>(),
                             .megabits = reader.integer<std::uint32_t>()});
  }
}

}  // namespace

std::string to_string(const PeerId& id) { return hex(std::as_bytes(std::span(id.bytes))); }

const char* to_string(LinkKind kind) noexcept {
  switch (kind) {
    case LinkKind::kShm: return "shm";
    case LinkKind::kTcp: return "tcp";
    case LinkKind::kUcx: return "ucx";
  }
  return "unknown";
}

std::uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(as_v4(*this).sin_port);
  if (family() == AF_INET6) return ntohs(as_v6(*this).sin6_port);
  return 0;
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) as_v4(*this).sin_port = htons(port);
  if (family() == AF_INET6) as_v6(*this).sin6_port = htons(port);
}

std::optional<SocketAddress> ip_address(const sockaddr* given) {
  if (given == nullptr || (given->sa_family != AF_INET && given->sa_family != AF_INET6)) return std::nullopt;
  SocketAddress address;
  address.length = given->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, given, address.length);
  return address;
}

std::string to_string(const SocketAddress& address) {
  const bool is_ip = address.family() == AF_INET || address.family() == AF_INET6;
  return ip_text(address) + (is_ip ? ":" + std::to_string(address.port()) : "");
}

std::string ip_text(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.family() == AF_INET) return inet_ntop(AF_INET, &as_v4(address).sin_addr, text, sizeof text);
  if (address.family() != AF_INET6) return address.family() == AF_UNIX ? "unix" : "unknown";
  const auto& v6 = as_v6(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  std::string scope;
  if (v6.sin6_scope_id != 0) {
    char name[IF_NAMESIZE] = {};
    scope = "%";
    scope += if_indextoname(v6.sin6_scope_id, name) != nullptr ? std::string(name) : std::to_string(v6.sin6_scope_id);
  }
  return "[" + std::string(text) + scope + "]";
}

std::optional<SocketAddress> parse_ip(std::string_view text, std::uint16_t port) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  if (text.empty() || text.size() > kMaxTcpText || text.find('\0') != std::string_view::npos) return std::nullopt;
  std::string host(text);
  SocketAddress address;
  if (inet_pton(AF_INET, host.c_str(), &as_v4(address).sin_addr) == 1) {
    address.storage.ss_family = AF_INET;
    address.length = sizeof(sockaddr_in);
    address.set_port(port);
    return address;
  }
  const auto percent = host.find('%');
  if (percent != std::string::npos) {
    as_v6(address).sin6_scope_id = scope_of(host.substr(percent + 1));
    if (as_v6(address).sin6_scope_id == 0) return std::nullopt;
    host.resize(percent);
  }
  if (inet_pton(AF_INET6, host.c_str(), &as_v6(address).sin6_addr) != 1) return std::nullopt;
  address.storage.ss_family = AF_INET6;
  address.length = sizeof(sockaddr_in6);
  address.set_port(port);
  return address;
}

std::optional<SocketAddress> parse_tcp_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto port = to_number<std::uint16_t>(text.substr(colon + 1));
  const auto host = text.substr(0, colon);
  // An IPv6 address without brackets would swallow its last group as the port.
  const bool bracketed = !host.empty() && host.front() == '[' && host.back() == ']';
  if (port.value_or(0) == 0 || (!bracketed && host.find(':') != std::string_view::npos)) return std::nullopt;
  return parse_ip(host, *port);
}

SocketAddress abstract_unix_address(std::string_view name) {
  SocketAddress address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  local.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), kMaxUnixName);
  std::memcpy(local.sun_path + 1, name.data(), length);  // the leading zero makes it abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

SocketAddress remote_address(int fd) noexcept { return end_of(fd, ::getpeername); }

SocketAddress local_address(int fd) noexcept { return end_of(fd, ::getsockname); }

bool has_one_host(int fd) noexcept {
  const SocketAddress remote = remote_address(fd);
  const SocketAddress local = local_address(fd);
  if (remote.family() != local.family() || (local.family() != AF_INET && local.family() != AF_INET6)) return false;
  return local.family() == AF_INET
             ? as_v4(remote).sin_addr.s_addr == as_v4(local).sin_addr.s_addr
             : std::memcmp(&as_v6(remote).sin6_addr, &as_v6(local).sin6_addr, sizeof(in6_addr)) == 0;
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

int take_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

pid_t peer_process(int fd) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 ? credentials.pid : 0;
}

Fd open_socket(int family) { return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

Fd try_listen(const SocketAddress& address) {
  Fd fd = open_socket(address.family());
  if (!fd) return fd;
  if (address.family() != AF_UNIX) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

Fd accept_from(int listener) { return Fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

bool lacks_resources(int error_number) noexcept {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS || error_number == ENOMEM;
}

int start_connecting(int fd, const SocketAddress& to) {
  const int result = retried([&] { return ::connect(fd, to.get(), to.length); });
  if (result == 0 || errno == EISCONN) return 0;
  return errno == EALREADY ? EINPROGRESS : errno;
}

bool send_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  const ssize_t sent = retried([&] { return send_with(socket, bytes, descriptors); });
  return sent == static_cast<ssize_t>(bytes.size());
}

std::optional<ReceivedDescriptors> receive_descriptors(int socket, std::size_t bytes) {
  ReceivedDescriptors received;
  received.bytes.resize(bytes);
  const ssize_t count = receive_with(socket, received.bytes, received.descriptors);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (count <= 0) throw Error(ErrorKind::kPeerLost, "the other end of a Unix socket is closed");
  if (static_cast<std::size_t>(count) != bytes) {
    throw Error(ErrorKind::kProtocol, "a Unix socket brought ", count, " bytes instead of ", bytes);
  }
  return received;
}

std::vector<std::byte> PeerAddress::encode() const {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.integer(kAddressFormat);
  writer.bytes(std::as_bytes(std::span(id.bytes)));
  writer.string(host, kMaxEncodedHost);
  writer.string(unix_name, kMaxUnixName);
  writer.string(name, kMaxName);
  writer.integer(static_cast<std::uint8_t>(transport));
  writer.integer(static_cast<std::uint8_t>(ucx));
  const std::size_t count = std::min(tcp.size(), kMaxTcp);
  writer.integer(static_cast<std::uint8_t>(count));
  for (std::size_t i = 0; i < count; ++i) writer.string(tcp[i], kMaxTcpText);
  writer.integer(static_cast<std::uint8_t>(rails_are_stated));
  const std::size_t most = std::min(rails.size(), kMaxRails);
  writer.integer(static_cast<std::uint8_t>(most));
  for (std::size_t i = 0; i < most; ++i) {
    writer.string(rails[i].tcp, kMaxTcpText);
    writer.integer(rails[i].network_bits);
    writer.integer(rails[i].distance);
    writer.integer(rails[i].megabits);
  }
  return out;
}

PeerAddress PeerAddress::decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxAddressBytes) refuse_address("is too long");
  ByteReader reader(bytes, "a peer's address");
  if (const int format = reader.integer<std::uint8_t>(); format != kAddressFormat) {
    refuse_address("has format " + std::to_string(format) + ", not " + std::to_string(kAddressFormat));
  }
  PeerAddress address;
  std::memcpy(address.id.bytes.data(), reader.bytes(address.id.bytes.size()).data(), address.id.bytes.size());
  address.host = reader.string(kMaxEncodedHost);
  address.unix_name = reader.string(kMaxUnixName);
  address.name = reader.string(kMaxName);
  address.transport = read_enum(TransportChoice::kUcx, "names the unknown transport", reader);
  address.ucx = read_enum(UcxReach::kRdma, "states the unknown reach of UCX", reader);
  const std::size_t count = reader.integer<std::uint8_t>();
  if (count > kMaxTcp) refuse_address("lists too many TCP addresses");
  for (std::size_t i = 0; i < count; ++i) address.tcp.push_back(reader.string(kMaxTcpText));
  read_rails(reader, address);
  reader.expect_end();
  return address;
}

}  // namespace atl::transport
