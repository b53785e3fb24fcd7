// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "atoll/transport/endpoint.h"
#include "atoll/transport/rails/interfaces.h"

// Which rails a link has: what one end offers, and what two ends make of it. The protocol is in docs/rails.md.
namespace atl::transport {

/// ATOLL_RAILS, read.
struct RailSettings {
  enum class Kind {
    kAuto,    ///< interfaces with hardware, each in a network of its own, as fast as the first one; at most kMaxAuto
    kNumber,  ///< so many: interfaces with hardware in different networks, then the same ones again
    kList,    ///< these interfaces and addresses, in this order
  };
  Kind kind = Kind::kAuto;
  std::size_t number = 0;
  std::vector<std::string> list;
};
inline constexpr std::size_t kMaxAutoRails = 4;

/// Error(kInvalidArgument) that says what is expected. "" and "auto" are kAuto.
RailSettings parse_rail_settings(const std::string& text);

/// What this end offers. `first_host` is the address that is advertised first ("10.0.0.1"); it is the first rail, except in a list.
/// `is_chosen`: the user chose that address, so that without a word about rails there is no other. Pure. Throws Error(kUnavailable)
/// naming an entry of a list that is no interface or address of this machine.
std::vector<RailAddress> offered_rails(const RailSettings& settings, const std::vector<Interface>& interfaces,
                                       const std::string& first_host, bool is_chosen, std::uint16_t port,
                                       const std::string& device_path, const std::vector<int>& nodes);

/// Fills `self.rails` for an endpoint that listens on `port` and advertises `first_host` first; in a list's case puts that
/// list's first address in front of `self.tcp`.
void choose_rails(const EndpointOptions& options, const std::string& first_host, std::uint16_t port, PeerAddress& self);

/// The rails of a link between two ends: indices into `a.rails` and `b.rails`. The first pair is the way the link was opened. Both ends
/// compute the same, mirrored. Empty or one pair: a link over one rail.
std::vector<std::pair<std::size_t, std::size_t>> pair_rails(const PeerAddress& a, const PeerAddress& b);

/// Whether two addresses ("10.0.0.1:4711") are in one network of `bits` leading bits.
bool same_network(const std::string& a, const std::string& b, std::uint8_t bits);

}  // namespace atl::transport
