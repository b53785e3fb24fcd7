// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/rails.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <compare>
#include <span>
#include <tuple>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/address.h"

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

/// An interface, and the rail that it makes.
struct Offer {
  const Interface* interface;
  RailAddress rail;
};

/// Returns whether one of the rails has the same address or network.
bool has_equal(const std::vector<RailAddress>& rails, const RailAddress& other) {
  return std::ranges::any_of(rails, [&](const RailAddress& each) {
    return each.tcp == other.tcp || same_network(each.tcp, other.tcp, std::min(each.network_bits, other.network_bits));
  });
}

/// Resolves an entry of a list: an interface's name, or an address.
RailAddress stated_rail(const std::string& entry, const std::vector<Offer>& offers, std::uint16_t port) {
  const auto numeric = parse_ip(entry, port);
  const std::string tcp = numeric ? to_string(*numeric) : "";
  const auto fits = [&](const Offer& each) { return numeric ? each.rail.tcp == tcp : each.interface->name == entry; };
  auto found =
      std::ranges::find_if(offers, [&](const Offer& each) { return fits(each) && !each.interface->is_link_local; });
  if (found == offers.end()) found = std::ranges::find_if(offers, fits);
  if (found != offers.end()) return found->rail;
  // 127.0.0.2 is an address of this machine that no interface lists.
  if (numeric && is_loopback(ip_text(*numeric))) return {.tcp = tcp, .network_bits = 8};
  std::string known;
  for (const auto& [interface, rail] : offers) {
    known += (known.empty() ? "" : ", ") + interface->name + " " + interface->address;
  }
  throw Error(ErrorKind::kUnavailable, "\"", entry,
              "\" (ATOLL_RAILS) is neither an interface that is up nor an address of one; this machine has: ", known);
}

/// Returns the interfaces that may serve beside the first rail, near and fast ones first. Those without hardware
/// (bridges of containers, tunnels) lead to the same places, or nowhere.
std::vector<RailAddress> others(const std::vector<Offer>& offers, bool needs_rate) {
  std::vector<RailAddress> found;
  for (const auto& [interface, rail] : offers) {
    const bool is_usable = interface->has_hardware && !interface->is_loopback && !interface->is_link_local;
    if (is_usable && !(needs_rate && rail.megabits == 0)) found.push_back(rail);
  }
  const auto order = [](const RailAddress& each) { return std::tuple(each.distance, ~each.megabits); };
  std::ranges::stable_sort(found, {}, order);
  return found;
}

}  // namespace

RailSettings parse_rail_settings(const std::string& text) {
  RailSettings settings;
  if (text.empty() || text == "auto") return settings;
  const auto reject = [&] {
    throw Error(ErrorKind::kInvalidArgument, "ATOLL_RAILS=\"", text, "\": expected auto, a number from 1 to ",
                kMaxRails, ", or up to ", kMaxRails, " interfaces or addresses with commas");
  };
  if (text.find_first_not_of("0123456789") == std::string::npos) {
    settings.kind = RailSettings::Kind::kNumber;
    settings.number = to_number<std::size_t>(text).value_or(0);
    if (settings.number < 1 || settings.number > kMaxRails) reject();
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
  std::vector<Offer> offers;
  for (const Interface& each : interfaces) {
    offers.push_back({&each,
                      {.tcp = each.address + ":" + std::to_string(port),
                       .network_bits = each.network_bits,
                       .distance = static_cast<std::uint8_t>(distance(each, device_path, nodes)),
                       .megabits = each.megabits}});
  }
  std::vector<RailAddress> rails;
  if (settings.kind == Kind::kList) {
    for (const auto& entry : settings.list) rails.push_back(stated_rail(entry, offers, port));
    return rails;
  }
  const auto first =
      std::ranges::find_if(offers, [&](const Offer& each) { return each.interface->address == first_host; });
  rails.push_back(first != offers.end() ? first->rail : RailAddress{.tcp = first_host + ":" + std::to_string(port)});
  const bool is_auto = settings.kind == Kind::kAuto;
  const bool stays_alone = is_auto && (is_chosen || is_loopback(first_host) || first == offers.end() ||
                                       !first->interface->has_hardware || first->rail.megabits == 0);
  for (const RailAddress& each : others(offers, is_auto)) {
    if (stays_alone || rails.size() >= (is_auto ? kMaxAutoRails : settings.number)) break;
    // A slow interface, such as one for management, adds nothing and has another purpose.
    const bool is_slow = is_auto && each.megabits < rails.front().megabits / 2;
    if (!is_slow && !has_equal(rails, each)) rails.push_back(each);
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
  auto interfaces = list_interfaces();
  for (Interface& each : interfaces) read_sysfs(options.sysfs, each);
  self.rails = offered_rails(settings, interfaces, first_host, is_chosen, port, options.device_path,
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
  for (std::size_t i = 0; 8 * i < bits; ++i) {
    const auto kept = std::min<std::size_t>(8, bits - 8 * i);
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
    auto operator<=>(const Candidate&) const = default;
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
  std::ranges::sort(candidates);
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
