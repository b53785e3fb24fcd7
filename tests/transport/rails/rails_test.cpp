// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/rails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/rails/interfaces.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using namespace transport;
using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
namespace fs = std::filesystem;

Interface card(const std::string& name, const std::string& address, std::uint32_t megabits = 25000, int node = -1) {
  return {.name = name,
          .address = address,
          .network_bits = 24,
          .is_loopback = false,
          .is_link_local = false,
          .has_hardware = true,
          .megabits = megabits,
          .node = node,
          .device_path = ""};
}

Interface without_hardware(const std::string& name, const std::string& address) {
  Interface found = card(name, address, 0);
  found.has_hardware = false;
  return found;
}

Interface loopback() {
  Interface found = without_hardware("lo", "127.0.0.1");
  found.is_loopback = true;
  found.network_bits = 8;
  return found;
}

std::vector<std::string> hosts(const std::vector<RailAddress>& rails) {
  std::vector<std::string> found;
  for (const RailAddress& each : rails) found.push_back(each.tcp.substr(0, each.tcp.rfind(':')));
  return found;
}

std::vector<std::string> offered(const std::string& settings, const std::vector<Interface>& interfaces,
                                 const std::string& first, bool is_chosen = false, const std::vector<int>& nodes = {}) {
  return hosts(offered_rails(parse_rail_settings(settings), interfaces, first, is_chosen, 4711, "", nodes));
}

using Hosts = std::vector<std::string>;

TEST(RailSettings, ReadsWhatUsersWrite) {
  using Kind = RailSettings::Kind;
  EXPECT_EQ(parse_rail_settings("").kind, Kind::kAuto);
  EXPECT_EQ(parse_rail_settings("auto").kind, Kind::kAuto);
  EXPECT_EQ(parse_rail_settings("1").number, 1U);
  EXPECT_EQ(parse_rail_settings("8").number, 8U);
  const RailSettings list = parse_rail_settings("eth0,10.0.0.1,fe80::1%eth0");
  EXPECT_EQ(list.kind, Kind::kList);
  EXPECT_EQ(list.list, (Hosts{"eth0", "10.0.0.1", "fe80::1%eth0"}));
  for (const char* text : {"0", "9", "99999999999999999999", "eth0,", ",eth0", "a,b,c,d,e,f,g,h,i", ","}) {
    try {
      parse_rail_settings(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("ATOLL_RAILS"), std::string::npos) << error.what();
    }
  }
}

TEST(OfferedRails, AutoTakesFastInterfacesOfDifferentNetworks) {
  const std::vector<Interface> machine{loopback(),
                                       card("eth0", "10.0.0.1"),
                                       card("eth1", "10.0.1.1"),
                                       card("again", "10.0.1.9"),
                                       card("manage", "192.168.0.1", 1000),
                                       without_hardware("docker0", "172.17.0.1"),
                                       card("eth2", "10.0.2.1", 50000)};
  EXPECT_EQ(offered("", machine, "10.0.0.1"), (Hosts{"10.0.0.1", "10.0.2.1", "10.0.1.1"}));
  EXPECT_EQ(offered("", machine, "10.0.0.1", true), (Hosts{"10.0.0.1"})) << "the user chose one address";
  EXPECT_EQ(offered("", machine, "127.0.0.1"), (Hosts{"127.0.0.1"}));
  EXPECT_EQ(offered("", machine, "172.17.0.1"), (Hosts{"172.17.0.1"}));
  EXPECT_EQ(offered("", machine, "1.2.3.4"), (Hosts{"1.2.3.4"}))
      << "an address that peers see and this machine does not";
  std::vector<Interface> many{card("eth0", "10.0.0.1")};
  for (int i = 1; i < 9; ++i) many.push_back(card("eth" + std::to_string(i), "10.0." + std::to_string(i) + ".1"));
  EXPECT_EQ(offered("auto", many, "10.0.0.1").size(), kMaxAutoRails);
}

TEST(OfferedRails, NearInterfacesComeFirst) {
  const std::vector<Interface> machine{card("eth0", "10.0.0.1", 25000, 0), card("far", "10.0.1.1", 25000, 1),
                                       card("near", "10.0.2.1", 25000, 0), card("unknown", "10.0.3.1", 25000, -1)};
  EXPECT_EQ(offered("", machine, "10.0.0.1", false, {0}), (Hosts{"10.0.0.1", "10.0.2.1", "10.0.3.1", "10.0.1.1"}));
  EXPECT_EQ(offered("2", machine, "10.0.0.1", false, {0}), (Hosts{"10.0.0.1", "10.0.2.1"}));
}

TEST(OfferedRails, ANumberRepeatsInterfaces) {
  const std::vector<Interface> machine{loopback(), card("eth0", "10.0.0.1", 0), card("eth1", "10.0.1.1", 100)};
  EXPECT_EQ(offered("1", machine, "10.0.0.1"), (Hosts{"10.0.0.1"}));
  EXPECT_EQ(offered("2", machine, "10.0.0.1"), (Hosts{"10.0.0.1", "10.0.1.1"}));
  EXPECT_EQ(offered("5", machine, "10.0.0.1"), (Hosts{"10.0.0.1", "10.0.1.1", "10.0.0.1", "10.0.1.1", "10.0.0.1"}));
  EXPECT_EQ(offered("3", {loopback()}, "127.0.0.1"), (Hosts(3, "127.0.0.1")));
}

TEST(OfferedRails, AListIsTakenAsItIs) {
  const std::vector<Interface> machine{loopback(), card("eth0", "10.0.0.1"), without_hardware("veth1", "10.0.1.1"),
                                       card("eth0", "[fd00::1]")};
  EXPECT_EQ(offered("veth1,eth0", machine, "10.0.0.1"), (Hosts{"10.0.1.1", "10.0.0.1"}));
  EXPECT_EQ(offered("10.0.1.1,fd00::1,127.0.0.2", machine, "10.0.0.1"), (Hosts{"10.0.1.1", "[fd00::1]", "127.0.0.2"}));
  EXPECT_EQ(offered("eth0,eth0", machine, "10.0.0.1", true), (Hosts{"10.0.0.1", "10.0.0.1"}));
  for (const char* wrong : {"nosuch0", "10.9.9.9", "eth0,nosuch0"}) {
    try {
      offered(wrong, machine, "10.0.0.1");
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      EXPECT_NE(std::string(error.what()).find("veth1 10.0.1.1"), std::string::npos) << error.what();
    }
  }
}

PeerAddress peer(std::uint8_t number, const std::vector<std::pair<std::string, int>>& rails, bool stated = false) {
  PeerAddress address;
  address.id.bytes[0] = number;
  for (const auto& [host, bits] : rails) {
    address.rails.push_back({.tcp = host + ":1", .network_bits = static_cast<std::uint8_t>(bits)});
  }
  address.rails_are_stated = stated;
  return address;
}

TEST(PairRails, PairsNetworks) {
  const PeerAddress a = peer(1, {{"10.0.0.1", 24}, {"10.0.1.1", 24}, {"10.0.2.1", 24}});
  const PeerAddress b = peer(2, {{"10.0.0.2", 24}, {"10.0.2.2", 24}, {"10.0.1.2", 24}});
  EXPECT_EQ(pair_rails(a, b), (Pairs{{0, 0}, {1, 2}, {2, 1}}));
  EXPECT_EQ(pair_rails(b, a), (Pairs{{0, 0}, {2, 1}, {1, 2}}));
  const PeerAddress apart = peer(3, {{"10.5.0.2", 24}, {"10.5.2.2", 24}});
  EXPECT_EQ(pair_rails(a, apart), Pairs{}) << "it is not known whether the networks are connected";
  const PeerAddress stated = peer(4, {{"10.5.0.2", 24}, {"10.5.2.2", 24}}, true);
  EXPECT_EQ(pair_rails(a, stated), Pairs{});
  EXPECT_EQ(pair_rails(peer(1, {{"10.0.0.1", 24}, {"10.0.1.1", 24}}, true), stated), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(pair_rails(a, peer(5, {})), Pairs{});
  EXPECT_EQ(pair_rails(a, peer(5, {{"10.0.0.7", 24}})), Pairs{});
}

TEST(PairRails, BothEndsComputeTheSameAndUseNothingTwice) {
  std::mt19937 random(20250301);
  for (int round = 0; round < 3000; ++round) {
    const auto some = [&](std::uint8_t number) {
      PeerAddress address;
      address.id.bytes[0] = number;
      for (std::size_t i = random() % (kMaxRails + 1); i != 0; --i) {
        address.rails.push_back(
            {.tcp = "10.0." + std::to_string(random() % 4) + "." + std::to_string(random() % 250) + ":1",
             .network_bits = static_cast<std::uint8_t>(random() % 3 == 0 ? 16 : 24),
             .distance = static_cast<std::uint8_t>(random() % 4)});
      }
      address.rails_are_stated = random() % 2 == 0;
      return address;
    };
    const PeerAddress a = some(1);
    const PeerAddress b = some(2);
    const Pairs pairs = pair_rails(a, b);
    Pairs mirrored = pair_rails(b, a);
    for (auto& [first, second] : mirrored) std::swap(first, second);
    ASSERT_EQ(pairs, mirrored);
    std::set<std::size_t> here;
    std::set<std::size_t> there;
    for (const auto& [first, second] : pairs) {
      ASSERT_LT(first, a.rails.size());
      ASSERT_LT(second, b.rails.size());
      ASSERT_TRUE(here.insert(first).second);
      ASSERT_TRUE(there.insert(second).second);
    }
    ASSERT_NE(pairs.size(), 1U);
    if (!pairs.empty()) {
      ASSERT_EQ(pairs.front(), (std::pair<std::size_t, std::size_t>{0, 0}));
    }
  }
}

/// The same, bit by bit.
bool share_bits(const std::array<int, 4>& a, const std::array<int, 4>& b, int bits) {
  for (int bit = 0; bit < bits; ++bit) {
    const auto at = static_cast<std::size_t>(bit / 8);
    if (((a[at] ^ b[at]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return bits != 0;
}

TEST(SameNetwork, AgreesWithALookAtEveryBit) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::array<int, 4> a{};
    for (int& byte : a) byte = static_cast<int>(random() % 256);
    std::array<int, 4> b = a;
    b[random() % 4] ^= 1 << random() % 8;
    const auto text = [](const std::array<int, 4>& bytes) {
      std::string joined;
      for (const int byte : bytes) joined += (joined.empty() ? "" : ".") + std::to_string(byte);
      return joined + ":80";
    };
    const int bits = static_cast<int>(random() % 33);
    ASSERT_EQ(same_network(text(a), text(b), static_cast<std::uint8_t>(bits)), share_bits(a, b, bits))
        << text(a) << " " << text(b) << "/" << bits;
  }
  EXPECT_TRUE(same_network("[fd00::1]:1", "[fd00::2]:2", 64));
  EXPECT_FALSE(same_network("[fd00::1]:1", "[fd00::2]:2", 128));
  EXPECT_FALSE(same_network("[fd00::1]:1", "10.0.0.1:1", 1));
  EXPECT_FALSE(same_network("10.0.0.1:1", "10.0.0.2:1", 64));
  EXPECT_FALSE(same_network("nonsense", "10.0.0.2:1", 8));
}

void write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << content << "\n";
}

TEST(Interfaces, ReadsWhatTheSystemSaysOfACard) {
  const TemporaryFolder folder;
  const fs::path root = fs::canonical(folder.path("."));
  const fs::path device = root / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
  write(device / "numa_node", "1");
  write(root / "class/net/eth7/speed", "100000");
  fs::create_directory_symlink(device, root / "class/net/eth7/device");
  Interface found;
  found.name = "eth7";
  read_sysfs(root, found);
  EXPECT_TRUE(found.has_hardware);
  EXPECT_EQ(found.megabits, 100000U);
  EXPECT_EQ(found.node, 1);
  EXPECT_EQ(found.device_path, device.string());

  // A bridge of containers has no device, and its driver states -1.
  write(root / "class/net/docker0/speed", "-1");
  Interface bridge;
  bridge.name = "docker0";
  read_sysfs(root, bridge);
  EXPECT_FALSE(bridge.has_hardware);
  EXPECT_EQ(bridge.megabits, 0U);
  EXPECT_EQ(bridge.node, -1);

  const fs::path near = root / "devices/pci0000:3a/0000:3a:00.0/0000:3c:00.0";
  const fs::path same_node = root / "devices/pci0000:40/0000:40:00.0";
  const fs::path far = root / "devices/pci0000:80/0000:80:00.0";
  const fs::path silent = root / "devices/pci0000:90/0000:90:00.0";
  write(near / "numa_node", "1");
  write(same_node / "numa_node", "1");
  write(far / "numa_node", "0");
  write(silent / "numa_node", "-1");
  EXPECT_EQ(distance(found, near, {}), Distance::kSameSwitch);
  EXPECT_EQ(distance(found, same_node, {}), Distance::kSameNode);
  EXPECT_EQ(distance(found, far, {}), Distance::kOtherNode);
  EXPECT_EQ(distance(found, silent, {}), Distance::kUnknown);
  EXPECT_EQ(distance(found, "", {0, 1}), Distance::kSameNode);
  EXPECT_EQ(distance(found, "", {0}), Distance::kOtherNode);
  EXPECT_EQ(distance(found, "", {}), Distance::kUnknown);
  EXPECT_EQ(distance(bridge, near, {1}), Distance::kUnknown);
}

TEST(Interfaces, KnowsTheNodesOfThisThread) {
  const TemporaryFolder folder;
  const fs::path root = folder.path(".");
  const fs::path nodes = root / "devices/system/node";
  EXPECT_TRUE(nodes_of_this_thread(root).empty());
  write(nodes / "node0/cpulist", "0-65000");
  EXPECT_TRUE(nodes_of_this_thread(root).empty()) << "one node tells nothing";
  write(nodes / "node1/cpulist", "65001-65002");
  write(nodes / "possible", "0-1");
  EXPECT_EQ(nodes_of_this_thread(root), std::vector<int>{0});
}

TEST(Interfaces, ParsesListsOfCores) {
  EXPECT_EQ(parse_core_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_core_list("5\n"), std::vector<int>{5});
  EXPECT_TRUE(parse_core_list("").empty());
  EXPECT_TRUE(parse_core_list("x,3-,-,4-2,0-999999999").empty());
}

TEST(Interfaces, ListsLoopback) {
  auto all = list_interfaces();
  const auto found = std::find_if(all.begin(), all.end(), [](const Interface& each) { return each.is_loopback; });
  if (found == all.end()) GTEST_SKIP() << "this machine has no loopback interface that is up";
  EXPECT_TRUE(found->address == "127.0.0.1" || found->address == "[::1]") << found->address;
  EXPECT_GT(found->network_bits, 0);
  read_sysfs("/sys", *found);
  EXPECT_FALSE(found->has_hardware);
}

}  // namespace
}  // namespace atl::test
