// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "atoll/transport/address.h"
#include "atoll/transport/socket.h"

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

}  // namespace atl::transport
