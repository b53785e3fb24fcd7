// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atl::transport {

/// How far an interface is from what a rank computes on, by what bytes pass between them. As a number in RailAddress.
enum class Distance : std::uint8_t {
  kSameSwitch,  ///< below one bridge of the PCI tree
  kSameNode,    ///< of one memory node
  kUnknown,     ///< the system does not say, or has one node only
  kOtherNode,
};

/// One address of one network interface that is up.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.1", "[fd00::1]"
  std::uint8_t network_bits = 0;
  bool is_loopback = false;
  bool is_link_local = false;
  bool has_hardware = false;   ///< a device stands behind it: no bridge, tunnel or container's interface
  std::uint32_t megabits = 0;  ///< per second, as its driver states; 0: it does not
  int node = -1;               ///< memory node of the device; -1: unknown
  std::string device_path;     ///< of the device in sysfs, without links; empty: unknown
};

/// Every IPv4 and IPv6 address of the interfaces that are up, in the system's order; what sysfs at `sysfs` ("/sys") says of them.
/// Throws Error(kUnavailable) when the system does not list them.
std::vector<Interface> list_interfaces(const std::string& sysfs);

/// Fills the fields that come from sysfs; those that are not there stay as they are.
void read_sysfs(const std::string& sysfs, Interface& interface);

/// Memory nodes on whose cores this thread may run, of those that `sysfs` lists; empty where it lists fewer than two.
std::vector<int> nodes_of_this_thread(const std::string& sysfs);

/// Distance from a device at `device_path` in sysfs, or, where that is empty, from a process that runs on `nodes`.
Distance distance(const Interface& interface, const std::string& device_path, const std::vector<int>& nodes);

/// "0-3,8,10-11" as the system writes sets of cores; what does not parse is left out.
std::vector<int> parse_core_list(const std::string& text);

}  // namespace atl::transport
