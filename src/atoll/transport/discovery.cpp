// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/discovery.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <set>

#include "atoll/core/bytes.h"
#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"

namespace atl::transport {

namespace {

constexpr std::size_t kMaxAdvertised = 6;

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Interfaces list_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw unavailable("cannot list the network interfaces", errno);
  return {list, &::freeifaddrs};
}

std::string without_port(const SocketAddress& address) {
  std::string text = to_string(address);
  text.resize(text.rfind(':'));
  return text;
}

std::optional<SocketAddress> address_of(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return std::nullopt;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  SocketAddress address;
  address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::copy_n(reinterpret_cast<const std::byte*>(entry.ifa_addr), address.length,
              reinterpret_cast<std::byte*>(&address.storage));
  return address;
}

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

/// Orders IPv4 first, then IPv6, link-local IPv6 last.
int preference(const SocketAddress& address) {
  if (address.family() == AF_INET) return 0;
  return is_link_local(address) ? 2 : 1;
}

/// Returns the addresses of the interfaces that `wanted` accepts, best first.
template <class Wanted>
std::vector<std::string> interface_addresses(const Wanted& wanted) {
  std::vector<std::pair<int, std::string>> ranked;
  const auto list = list_interfaces();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const auto address = address_of(*entry);
    if (address && wanted(*entry)) ranked.emplace_back(preference(*address), without_port(*address));
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> hosts;
  for (auto& [rank, host] : ranked) hosts.push_back(std::move(host));
  return hosts;
}

std::vector<std::string> hosts_of_interface(const std::string& name) {
  auto hosts = interface_addresses([&](const ifaddrs& entry) { return name == entry.ifa_name; });
  if (!hosts.empty()) return hosts;
  std::set<std::string> known;
  const auto list = list_interfaces();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) known.insert(entry->ifa_name);
  std::string names;
  for (const auto& each : known) names += (names.empty() ? "" : ", ") + each;
  const std::string what = known.contains(name) ? " is down or has no IP address" : " does not exist";
  throw Error(ErrorKind::kUnavailable,
              "interface \"" + name + "\" (ATOLL_IFACE)" + what + "; this machine has: " + names);
}

std::vector<SocketAddress> resolve(const std::string& host, int* failure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  *failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    address.length = entry->ai_addrlen;
    std::copy_n(reinterpret_cast<const std::byte*>(entry->ai_addr), address.length,
                reinterpret_cast<std::byte*>(&address.storage));
    found.push_back(address);
  }
  if (list != nullptr) ::freeaddrinfo(list);
  return found;
}

/// Returns the local address the system would send from: connecting a datagram socket picks a route and sends nothing.
std::optional<SocketAddress> route_towards(SocketAddress target) {
  const Fd probe(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  target.set_port(9);
  if (!probe || ::connect(probe.get(), target.get(), target.length) != 0) return std::nullopt;
  auto local = local_address(probe.get());
  if (local.length == 0) return std::nullopt;
  return local;
}

std::vector<std::string> hosts_by_route(const std::string& hint) {
  std::vector<std::string> hosts;
  int failure = 0;
  if (!hint.empty()) {
    for (const auto& target : resolve(hint, &failure)) {
      if (const auto local = route_towards(target)) hosts.push_back(without_port(*local));
    }
  }
  // A name such as Debian's 127.0.1.1 leads to loopback: the interfaces come after it, for peers on other machines.
  const bool loopback = std::all_of(hosts.begin(), hosts.end(),
                                    [](const auto& host) { return host.starts_with("127.") || host == "[::1]"; });
  if (!loopback) return hosts;
  if (hosts.empty()) hosts = interface_addresses([](const ifaddrs& e) { return (e.ifa_flags & IFF_LOOPBACK) != 0; });
  if (hosts.empty()) hosts.emplace_back("127.0.0.1");
  for (auto& host : interface_addresses([](const ifaddrs& e) { return (e.ifa_flags & IFF_LOOPBACK) == 0; })) {
    hosts.push_back(std::move(host));
  }
  return hosts;
}

std::vector<std::string> hosts_of_option(const std::string& option) {
  if (const auto numeric = parse_ip(option, 0)) return {without_port(*numeric)};
  int failure = 0;
  std::vector<std::string> hosts;
  for (const auto& address : resolve(option, &failure)) hosts.push_back(without_port(address));
  if (hosts.empty()) {
    throw Error(ErrorKind::kUnavailable, "the advertised address \"" + option +
                                             "\" (ATOLL_ADDRESS) does not resolve: " + ::gai_strerror(failure));
  }
  return hosts;
}

}  // namespace

Error unavailable(const std::string& what, int error_number) {
  std::string message = with_errno(what, error_number);
  if (error_number == EMFILE) message += "; raise the limit of open files (ulimit -n)";
  if (error_number == ENFILE) message += "; raise the system's limit of open files (sysctl fs.file-max)";
  return Error(ErrorKind::kUnavailable, message);
}

std::string host_identity(const std::string& label) {
  if (!label.empty()) return label;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty()) {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) == 0) boot = name.data();
  }
  struct stat space {};
  if (::stat("/proc/self/ns/net", &space) == 0) boot += "/" + std::to_string(space.st_ino);
  const Mac digest = hmac_sha256(as_byte_span("atoll host"), {as_byte_span(boot)});
  PeerId short_digest;
  std::copy_n(reinterpret_cast<const std::uint8_t*>(digest.data()), short_digest.bytes.size(),
              short_digest.bytes.begin());
  return to_string(short_digest);
}

std::vector<std::string> advertised_hosts(const EndpointOptions& options) {
  std::vector<std::string> hosts;
  if (!options.advertised_address.empty()) {
    hosts = hosts_of_option(options.advertised_address);
  } else if (!options.interface.empty()) {
    hosts = hosts_of_interface(options.interface);
  } else {
    hosts = hosts_by_route(options.route_hint);
  }
  std::vector<std::string> unique;
  for (auto& host : hosts) {
    if (unique.size() < kMaxAdvertised && std::find(unique.begin(), unique.end(), host) == unique.end()) {
      unique.push_back(std::move(host));
    }
  }
  return unique;
}

std::string join_host_port(const std::string& host, std::uint16_t port) { return host + ":" + std::to_string(port); }

}  // namespace atl::transport
