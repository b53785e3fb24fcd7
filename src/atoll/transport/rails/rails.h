// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "atoll/transport/endpoint.h"
#include "atoll/transport/rails/interfaces.h"

// Chooses the rails of a link from what its two ends offer. The protocol is in docs/rails.md.
namespace atl::transport {

/// The parsed value of ATOLL_RAILS.
struct RailSettings {
  enum class Kind {
    kAuto,    ///< interfaces with hardware, each in a network of its own, as fast as the first; at most kMaxAutoRails
    kNumber,  ///< a number of rails: interfaces with hardware in different networks, then the same again
    kList,    ///< these interfaces and addresses, in this order
  };
  Kind kind = Kind::kAuto;
  std::size_t number = 0;
  std::vector<std::string> list;
};
inline constexpr std::size_t kMaxAutoRails = 4;

/// Parses ATOLL_RAILS; "" and "auto" are kAuto. Throws Error(kInvalidArgument) that states what is expected.
RailSettings parse_rail_settings(const std::string& text);

/// Returns the rails that this end offers. `first_host` is the address that is advertised first ("10.0.0.1"); it is the
/// first rail, except with a list. `is_chosen`: the user chose that address, so that with kAuto it is the only rail.
/// Pure. Throws Error(kUnavailable) naming a list's entry that is not an interface or address of this machine.
std::vector<RailAddress> offered_rails(const RailSettings& settings, const std::vector<Interface>& interfaces,
                                       const std::string& first_host, bool is_chosen, std::uint16_t port,
                                       const std::string& device_path, const std::vector<int>& nodes);

/// Fills `self.rails` for an endpoint that listens on `port` and advertises `first_host` first, and puts the first
/// rail's address in front of `self.tcp` unless the user stated both a list and an advertised address.
void choose_rails(const EndpointOptions& options, const std::string& first_host, std::uint16_t port, PeerAddress& self);

/// Returns the rails of a link between two ends, as indices into `a.rails` and `b.rails`. The link opens over the first
/// pair. Both ends compute the same, mirrored. Empty: the link has one rail.
std::vector<std::pair<std::size_t, std::size_t>> pair_rails(const PeerAddress& a, const PeerAddress& b);

/// Returns whether two addresses ("10.0.0.1:4711") are in one network of `bits` leading bits.
bool same_network(const std::string& a, const std::string& b, std::uint8_t bits);

}  // namespace atl::transport
