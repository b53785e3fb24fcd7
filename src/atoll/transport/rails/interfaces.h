// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/transport/endpoint.h"

namespace atl::transport {

/// The distance between an interface and a rank's device, by what bytes pass on the way. As a number in RailAddress.
enum class Distance : std::uint8_t {
  kSameSwitch,  ///< below the same bridge of the PCI tree
  kSameNode,    ///< on the same memory node
  kUnknown,     ///< not stated by the system, or the system has one node only
  kOtherNode,
};

/// One address of one network interface that is up.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.1", "[fd00::1]"
  std::uint8_t network_bits = 0;
  bool is_loopback = false;
  bool is_link_local = false;
  bool has_hardware = false;   ///< backed by a device, unlike a bridge, tunnel or container's interface
  std::uint32_t megabits = 0;  ///< per second, as its driver states; 0: not stated
  int node = -1;               ///< memory node of the device; -1: unknown
  std::string device_path{};   ///< of the device in sysfs, without links; empty: unknown
};

/// Lists every IPv4 and IPv6 address of the interfaces that are up, in the system's order, without what comes from
/// sysfs. Throws Error(kUnavailable) when the system does not list them.
std::vector<Interface> list_interfaces();

/// Returns whether an address ("127.0.0.1", "[::1]") is one of loopback.
bool is_loopback(const std::string& address);

/// Fills the fields that come from sysfs at `sysfs` ("/sys"): those from has_hardware on. Fields without an entry there
/// stay as they are.
void read_sysfs(const std::string& sysfs, Interface& interface);

/// Returns the memory nodes on whose cores this thread may run; empty when `sysfs` lists fewer than two nodes.
std::vector<int> nodes_of_this_thread(const std::string& sysfs);

/// Returns the distance from the device at `device_path` in sysfs or, if that is empty, from a process that runs on
/// `nodes`.
Distance distance(const Interface& interface, const std::string& device_path, const std::vector<int>& nodes);

/// Parses a set of cores as the system writes it, "0-3,8,10-11"; leaves out what does not parse.
std::vector<int> parse_core_list(const std::string& text);

/// Returns the identity of this host, within which processes share memory and abstract sockets: `label` if given, else
/// a name derived from the machine's boot id and the network namespace.
std::string host_identity(const std::string& label);

/// Returns this process's numeric addresses for peers, best first: options.advertised_address, else those of
/// options.interface, else the one that routes towards options.route_hint, else loopback. May query the name service.
/// Throws Error(kUnavailable) naming an interface or name that does not exist.
std::vector<std::string> advertised_hosts(const EndpointOptions& options);

}  // namespace atl::transport
