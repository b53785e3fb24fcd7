// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::transport {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxCores = 1 << 16;

std::optional<int> number_in(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Counts the one bits of a netmask.
std::uint8_t count_bits(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  int bits = 0;
  if (mask->sa_family == AF_INET) {
    bits = std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr);
  } else if (mask->sa_family == AF_INET6) {
    for (const std::uint8_t byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr) {
      bits += std::popcount(byte);
    }
  }
  return static_cast<std::uint8_t>(bits);
}

std::optional<Interface> interface_of(const ifaddrs& entry) {
  const auto address = ip_address(entry.ifa_addr);
  if (!address || (entry.ifa_flags & IFF_UP) == 0) return std::nullopt;
  return Interface{
      .name = entry.ifa_name,
      .address = ip_text(*address),
      .network_bits = count_bits(entry.ifa_netmask),
      .is_loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0,
      .is_link_local = address->family() == AF_INET6 &&
                       IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address->storage).sin6_addr)};
}

/// Counts the leading folders that two paths share.
std::ptrdiff_t shared_folders(const fs::path& a, const fs::path& b) {
  return std::distance(a.begin(), std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first);
}

/// Counts the folders of a device's path up to and including its root complex:
/// "/sys/devices/pci0000:3a/0000:3a:00.0/...".
std::ptrdiff_t folders_to_complex(const fs::path& path) {
  const auto is_complex = [](const fs::path& part) { return part.string().starts_with("pci"); };
  const auto found = std::find_if(path.begin(), path.end(), is_complex);
  return std::distance(path.begin(), found) + 1;
}

}  // namespace

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const auto dash = part.find('-');
    const auto first = number_in(part);
    const auto last = dash == std::string::npos ? first : number_in(part.substr(dash + 1));
    if (first && last && *first >= 0 && *last < kMaxCores) {
      for (int core = *first; core <= *last; ++core) cores.push_back(core);
    }
    at = comma + 1;
  }
  return cores;
}

std::vector<int> nodes_of_this_thread(const std::string& sysfs) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<int> nodes;
  std::size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(sysfs) / "devices/system/node", ignored)) {
    const std::string name = entry.path().filename();
    const auto node = name.starts_with("node") ? number_in(name.substr(4)) : std::nullopt;
    if (!node) continue;
    ++count;
    const auto cores = parse_core_list(first_line(entry.path() / "cpulist"));
    const bool is_ours = std::any_of(cores.begin(), cores.end(), [&](int core) {
      return core < CPU_SETSIZE && CPU_ISSET(static_cast<std::size_t>(core), &allowed);
    });
    if (is_ours) nodes.push_back(*node);
  }
  std::sort(nodes.begin(), nodes.end());
  return count < 2 ? std::vector<int>{} : nodes;
}

void read_sysfs(const std::string& sysfs, Interface& interface) {
  const fs::path folder = fs::path(sysfs) / "class/net" / interface.name;
  std::error_code error;
  const fs::path device = fs::canonical(folder / "device", error);
  interface.has_hardware = !error;
  if (!error) {
    interface.device_path = device.string();
    interface.node = number_in(first_line(device / "numa_node")).value_or(-1);
  }
  const auto megabits = number_in(first_line(folder / "speed"));
  if (megabits && *megabits > 0) interface.megabits = static_cast<std::uint32_t>(*megabits);
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "[::1]"; }

std::vector<Interface> list_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw unavailable("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (auto found = interface_of(*entry)) all.push_back(std::move(*found));
  }
  return all;
}

Distance distance(const Interface& interface, const std::string& device_path, const std::vector<int>& nodes) {
  if (!device_path.empty() && !interface.device_path.empty()) {
    const fs::path here(interface.device_path);
    if (shared_folders(here, device_path) > folders_to_complex(here)) return Distance::kSameSwitch;
    const auto node = number_in(first_line(fs::path(device_path) / "numa_node"));
    if (!node || *node < 0 || interface.node < 0) return Distance::kUnknown;
    return *node == interface.node ? Distance::kSameNode : Distance::kOtherNode;
  }
  if (nodes.empty() || interface.node < 0) return Distance::kUnknown;
  const bool is_near = std::find(nodes.begin(), nodes.end(), interface.node) != nodes.end();
  return is_near ? Distance::kSameNode : Distance::kOtherNode;
}

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
  throw Error(ErrorKind::kUnavailable, "interface \"", name, "\" (ATOLL_IFACE)", what, "; this machine has: ", names);
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
  std::string boot = first_line("/proc/sys/kernel/random/boot_id");
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
