// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/discovery.h"

#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/rails/interfaces.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::transport {

namespace {

constexpr std::size_t kMaxAdvertised = 6;
constexpr std::size_t kIdentityBytes = 16;
constexpr std::uint16_t kDiscardPort = 9;

/// Orders IPv4 first, then IPv6, link-local IPv6 last.
int preference(const Interface& interface) {
  if (!interface.address.starts_with('[')) return 0;
  return interface.is_link_local ? 2 : 1;
}

/// Returns the addresses of the interfaces that `wanted` accepts, best first.
template <class Wanted>
std::vector<std::string> interface_addresses(const Wanted& wanted) {
  auto all = list_interfaces();
  std::ranges::stable_sort(all, {}, preference);
  std::vector<std::string> hosts;
  for (Interface& each : all) {
    if (wanted(each)) hosts.push_back(std::move(each.address));
  }
  return hosts;
}

std::vector<std::string> hosts_of_interface(const std::string& name) {
  auto hosts = interface_addresses([&](const Interface& each) { return each.name == name; });
  if (!hosts.empty()) return hosts;
  std::set<std::string> known;  // those that are down too
  const std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> all(::if_nameindex(), &::if_freenameindex);
  for (const auto* each = all.get(); each != nullptr && each->if_index != 0; ++each) known.insert(each->if_name);
  std::string names;
  for (const auto& each : known) names += (names.empty() ? "" : ", ") + each;
  const std::string what = known.contains(name) ? " is down or has no IP address" : " does not exist";
  throw Error(ErrorKind::kUnavailable,
              "interface \"" + name + "\" (ATOLL_IFACE)" + what + "; this machine has: " + names);
}

/// Returns the local address the system would send from: connecting a datagram socket picks a route and sends nothing.
std::optional<SocketAddress> route_towards(const SocketAddress& target) {
  const Fd probe(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), target.get(), target.length) != 0) return std::nullopt;
  const auto local = local_address(probe.get());
  return local.length == 0 ? std::nullopt : std::optional(local);
}

std::vector<std::string> hosts_by_route(const std::string& hint) {
  std::vector<std::string> hosts;
  if (!hint.empty()) {
    try {
      for (const auto& target : resolve_host(hint, kDiscardPort)) {
        if (const auto local = route_towards(target)) hosts.push_back(ip_text(*local));
      }
    } catch (const Error&) {  // an unknown name
    }
  }
  // A name such as Debian's 127.0.1.1 leads to loopback: the interfaces come after it, for peers on other machines.
  if (!std::ranges::all_of(hosts, is_loopback)) return hosts;
  if (hosts.empty()) hosts = interface_addresses([](const Interface& each) { return each.is_loopback; });
  if (hosts.empty()) hosts.emplace_back("127.0.0.1");
  const auto others = interface_addresses([](const Interface& each) { return !each.is_loopback; });
  hosts.insert(hosts.end(), others.begin(), others.end());
  return hosts;
}

std::vector<std::string> hosts_of_option(const std::string& option) {
  std::vector<std::string> hosts;
  try {
    for (const auto& address : resolve_host(option, 0)) hosts.push_back(ip_text(address));
  } catch (const Error& error) {
    throw Error(ErrorKind::kUnavailable,
                "the advertised address \"" + option + "\" (ATOLL_ADDRESS) does not resolve: " + error.what());
  }
  return hosts;
}

std::vector<std::string> all_hosts(const EndpointOptions& options) {
  if (!options.advertised_address.empty()) return hosts_of_option(options.advertised_address);
  if (!options.interface.empty()) return hosts_of_interface(options.interface);
  return hosts_by_route(options.route_hint);
}

}  // namespace

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
  return hex(std::span(digest).first(kIdentityBytes));
}

std::vector<std::string> advertised_hosts(const EndpointOptions& options) {
  std::vector<std::string> unique;
  for (const auto& host : all_hosts(options)) {
    if (unique.size() < kMaxAdvertised && std::ranges::find(unique, host) == unique.end()) unique.push_back(host);
  }
  return unique;
}

}  // namespace atl::transport
