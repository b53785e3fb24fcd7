// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/rails.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <tuple>

#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/discovery.h"

namespace atl::transport {

namespace {

/// Returns the bytes of the address alone. Mapped IPv4 addresses are shown as IPv4 and do not occur here.
std::span<const std::uint8_t> address_bytes(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
    return {reinterpret_cast<const std::uint8_t*>(&v4), 4};
  }
  return {reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr.s6_addr, 16};
}

std::string host_of(const RailAddress& rail) { return rail.tcp.substr(0, rail.tcp.rfind(':')); }

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "[::1]"; }

RailAddress rail_of(const Interface& interface, std::uint16_t port, const std::string& device_path,
                    const std::vector<int>& nodes) {
  return {.tcp = join_host_port(interface.address, port),
          .network_bits = interface.network_bits,
          .distance = static_cast<std::uint8_t>(distance(interface, device_path, nodes)),
          .megabits = interface.megabits};
}

bool shares_network(const std::vector<RailAddress>& rails, const RailAddress& other) {
  return std::any_of(rails.begin(), rails.end(), [&](const RailAddress& each) {
    return same_network(each.tcp, other.tcp, std::min(each.network_bits, other.network_bits));
  });
}

bool has_host(const std::vector<RailAddress>& rails, const RailAddress& other) {
  return std::any_of(rails.begin(), rails.end(),
                     [&](const RailAddress& each) { return host_of(each) == host_of(other); });
}

/// Resolves an entry of a list: an interface's name, or an address.
RailAddress stated_rail(const std::string& entry, const std::vector<Interface>& interfaces, std::uint16_t port,
                        const std::string& device_path, const std::vector<int>& nodes) {
  const auto numeric = parse_ip(entry, 1);
  std::string host = numeric ? to_string(*numeric) : "";
  if (numeric) host.resize(host.rfind(':'));
  const auto best = [&](const Interface& each) { return numeric ? each.address == host : each.name == entry; };
  auto found = std::find_if(interfaces.begin(), interfaces.end(),
                            [&](const Interface& each) { return best(each) && !each.is_link_local; });
  if (found == interfaces.end()) found = std::find_if(interfaces.begin(), interfaces.end(), best);
  if (found != interfaces.end()) return rail_of(*found, port, device_path, nodes);
  // 127.0.0.2 is an address of this machine that no interface lists.
  if (numeric && is_loopback(host)) return {.tcp = join_host_port(host, port), .network_bits = 8};
  std::string known;
  for (const Interface& each : interfaces) known += (known.empty() ? "" : ", ") + each.name + " " + each.address;
  throw Error(
      ErrorKind::kUnavailable,
      "\"" + entry +
          "\" (ATOLL_RAILS) is neither an interface that is up nor an address of one; this machine has: " + known);
}

bool is_usable(const Interface& interface) {
  return interface.has_hardware && !interface.is_loopback && !interface.is_link_local;
}

/// Returns the interfaces that may serve beside the first rail, near and fast ones first. Those without hardware
/// (bridges of containers, tunnels) lead to the same places, or nowhere.
std::vector<RailAddress> others(const std::vector<Interface>& interfaces, bool needs_rate, std::uint16_t port,
                                const std::string& device_path, const std::vector<int>& nodes) {
  std::vector<RailAddress> found;
  for (const Interface& each : interfaces) {
    if (!is_usable(each) || (needs_rate && each.megabits == 0)) continue;
    found.push_back(rail_of(each, port, device_path, nodes));
  }
  std::stable_sort(found.begin(), found.end(), [](const RailAddress& a, const RailAddress& b) {
    return std::tuple(a.distance, ~a.megabits) < std::tuple(b.distance, ~b.megabits);
  });
  return found;
}

std::size_t limit_of(const RailSettings& settings) {
  return settings.kind == RailSettings::Kind::kNumber ? settings.number : kMaxAutoRails;
}

}  // namespace

RailSettings parse_rail_settings(const std::string& text) {
  RailSettings settings;
  if (text.empty() || text == "auto") return settings;
  const auto reject = [&] {
    throw Error(ErrorKind::kInvalidArgument, "ATOLL_RAILS=\"" + text + "\": expected auto, a number from 1 to " +
                                                 std::to_string(kMaxRails) + ", or up to " + std::to_string(kMaxRails) +
                                                 " interfaces or addresses with commas");
  };
  const bool is_number = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (is_number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), settings.number);
    if (error != std::errc() || settings.number < 1 || settings.number > kMaxRails) reject();
    settings.kind = RailSettings::Kind::kNumber;
    return settings;
  }
  settings.kind = RailSettings::Kind::kList;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    settings.list.push_back(text.substr(at, comma - at));
    if (settings.list.back().empty() || settings.list.size() > kMaxRails) reject();
    at = comma + 1;
  }
  return settings;
}

std::vector<RailAddress> offered_rails(const RailSettings& settings, const std::vector<Interface>& interfaces,
                                       const std::string& first_host, bool is_chosen, std::uint16_t port,
                                       const std::string& device_path, const std::vector<int>& nodes) {
  using Kind = RailSettings::Kind;
  std::vector<RailAddress> rails;
  if (settings.kind == Kind::kList) {
    for (const auto& entry : settings.list) rails.push_back(stated_rail(entry, interfaces, port, device_path, nodes));
    return rails;
  }
  const auto first = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const Interface& each) { return each.address == first_host; });
  rails.push_back(first != interfaces.end() ? rail_of(*first, port, device_path, nodes)
                                            : RailAddress{.tcp = join_host_port(first_host, port)});
  const bool is_auto = settings.kind == Kind::kAuto;
  const bool stays_alone = is_auto && (is_chosen || is_loopback(first_host) || first == interfaces.end() ||
                                       !first->has_hardware || first->megabits == 0);
  for (const RailAddress& each : others(interfaces, is_auto, port, device_path, nodes)) {
    if (stays_alone || rails.size() >= limit_of(settings)) break;
    // A slow interface, such as one for management, adds nothing and has another purpose.
    const bool is_slow = is_auto && each.megabits < rails.front().megabits / 2;
    if (!is_slow && !has_host(rails, each) && !shares_network(rails, each)) rails.push_back(each);
  }
  const std::size_t distinct = rails.size();
  for (std::size_t i = 0; !is_auto && rails.size() < settings.number; ++i) rails.push_back(rails[i % distinct]);
  return rails;
}

void choose_rails(const EndpointOptions& options, const std::string& first_host, std::uint16_t port,
                  PeerAddress& self) {
  const RailSettings settings = parse_rail_settings(options.rails);
  const bool is_chosen = !options.advertised_address.empty() || !options.interface.empty();
  if (settings.kind == RailSettings::Kind::kAuto && is_chosen) return;
  if (settings.kind == RailSettings::Kind::kNumber && settings.number == 1) return;
  self.rails = offered_rails(settings, list_interfaces(options.sysfs), first_host, is_chosen, port, options.device_path,
                             nodes_of_this_thread(options.sysfs));
  self.rails_are_stated = settings.kind == RailSettings::Kind::kList;
  if (settings.kind != RailSettings::Kind::kList || options.advertised_address.empty()) {
    // The link opens over the first rail.
    const std::string& front = self.rails.front().tcp;
    std::erase(self.tcp, front);
    self.tcp.insert(self.tcp.begin(), front);
  }
}

bool same_network(const std::string& a, const std::string& b, std::uint8_t bits) {
  const auto first = parse_tcp_address(a);
  const auto second = parse_tcp_address(b);
  if (!first || !second || first->family() != second->family() || bits == 0) return false;
  const auto left = address_bytes(*first);
  const auto right = address_bytes(*second);
  if (bits > 8 * left.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::size_t before = 8 * i;
    if (before >= bits) break;
    const auto kept = std::min<std::size_t>(8, bits - before);
    if (((left[i] ^ right[i]) >> (8 - kept)) != 0) return false;
  }
  return true;
}

std::vector<std::pair<std::size_t, std::size_t>> pair_rails(const PeerAddress& a, const PeerAddress& b) {
  if (b.id < a.id) {
    auto mirrored = pair_rails(b, a);
    for (auto& [first, second] : mirrored) std::swap(first, second);
    return mirrored;
  }
  const std::size_t most = std::min({a.rails.size(), b.rails.size(), kMaxRails});
  if (most < 2) return {};
  struct Candidate {
    bool is_other;  // the first pair is how the link opens, whatever its networks
    bool is_routed;
    int distance;
    std::size_t apart;
    std::size_t i;
    std::size_t j;
  };
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < a.rails.size(); ++i) {
    for (std::size_t j = 0; j < b.rails.size(); ++j) {
      const auto& left = a.rails[i];
      const auto& right = b.rails[j];
      const bool is_other = i != 0 || j != 0;
      const bool is_near = same_network(left.tcp, right.tcp, std::min(left.network_bits, right.network_bits));
      // Only a user knows whether different networks are connected.
      if (is_other && !is_near && !(a.rails_are_stated && b.rails_are_stated)) continue;
      candidates.push_back({is_other, !is_near, left.distance + right.distance, i > j ? i - j : j - i, i, j});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& x, const Candidate& y) {
    return std::tuple(x.is_other, x.is_routed, x.distance, x.apart, x.i, x.j) <
           std::tuple(y.is_other, y.is_routed, y.distance, y.apart, y.i, y.j);
  });
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const Candidate& each : candidates) {
    const bool is_taken =
        std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first == each.i || p.second == each.j; });
    if (!is_taken && pairs.size() < most) pairs.emplace_back(each.i, each.j);
  }
  if (pairs.size() < 2) pairs.clear();
  return pairs;
}

}  // namespace atl::transport
