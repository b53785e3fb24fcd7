// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atoll/core/error.h"
#include "atoll/transport/rails/interfaces.h"

namespace atl::transport {
namespace {

PeerAddress example() {
  PeerAddress address;
  for (std::size_t i = 0; i < address.id.bytes.size(); ++i) address.id.bytes[i] = static_cast<std::uint8_t>(16 * i + 1);
  address.host = "host";
  address.unix_name = "atoll-0123";
  address.tcp = {"10.0.0.1:4711", "[::1]:4711"};
  address.name = "rank 3";
  address.transport = TransportChoice::kTcp;
  address.rails = {{.tcp = "10.0.0.1:4711", .network_bits = 24, .distance = 1, .megabits = 100000},
                   {.tcp = "[fd00::1]:4711", .network_bits = 64, .distance = 3, .megabits = 0}};
  address.rails_are_stated = true;
  address.ucx = UcxReach::kRdma;
  return address;
}

TEST(PeerAddress, SurvivesTheStore) {
  const PeerAddress address = example();
  const PeerAddress copy = PeerAddress::decode(address.encode());
  EXPECT_EQ(copy.id, address.id);
  EXPECT_EQ(copy.host, address.host);
  EXPECT_EQ(copy.unix_name, address.unix_name);
  EXPECT_EQ(copy.tcp, address.tcp);
  EXPECT_EQ(copy.name, address.name);
  EXPECT_EQ(copy.transport, address.transport);
  EXPECT_EQ(copy.rails, address.rails);
  EXPECT_TRUE(copy.rails_are_stated);
  EXPECT_EQ(copy.ucx, address.ucx);
}

TEST(PeerAddress, EveryOtherLengthIsAProtocolError) {
  const auto bytes = example().encode();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(PeerAddress::decode(std::span(bytes).first(length)), Error) << length;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(PeerAddress::decode(longer), Error);
  longer.resize(kMaxAddressBytes + 1);
  EXPECT_THROW(PeerAddress::decode(longer), Error);
}

TEST(PeerAddress, WhatIsTooLongForAPeerIsRefusedHere) {
  PeerAddress address = example();
  address.name.assign(300, 'x');
  EXPECT_THROW(address.encode(), Error);
  address = example();
  address.tcp.assign(20, "10.0.0.1:4711");
  EXPECT_EQ(PeerAddress::decode(address.encode()).tcp.size(), 8U) << "the best ones are kept";
  address.rails.assign(20, {.tcp = std::string(80, 'x')});
  address.tcp.assign(20, std::string(80, 'x'));
  address.host.assign(256, 'x');
  address.name.assign(256, 'x');
  address.unix_name.assign(100, 'x');
  EXPECT_EQ(PeerAddress::decode(address.encode()).rails.size(), kMaxRails);
  EXPECT_LE(address.encode().size(), kMaxAddressBytes);
}

TEST(SocketAddress, ParsesAndPrintsNumericAddresses) {
  for (const char* text : {"10.0.0.1:4711", "[::1]:1", "[fe80::1%lo]:65535", "[2001:db8::7]:80"}) {
    const auto address = parse_tcp_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(to_string(*address), text);
  }
  EXPECT_EQ(to_string(*parse_tcp_address("[::ffff:10.0.0.1]:5")), "10.0.0.1:5") << "as a dual-stack listener sees IPv4";
  EXPECT_EQ(parse_tcp_address("127.0.0.1:80")->port(), 80);
}

TEST(SocketAddress, RefusesEverythingElse) {
  for (const char* text : {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:80x",
                           "10.0.0.1:-1", "::1:80", "[::1]", "[::1]80", "[fe80::1%nosuchinterface]:80", "localhost:80",
                           "10.0.0:80", "[]:80", "[:80", "10.0.0.1 :80"}) {
    EXPECT_FALSE(parse_tcp_address(text)) << text;
  }
  EXPECT_FALSE(parse_tcp_address(std::string(5000, '1') + ":80"));
}

std::string refusal_of_interface(const std::string& name) {
  EndpointOptions options;
  options.interface = name;
  try {
    advertised_hosts(options);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUnavailable ? error.what() : "another kind of error";
  }
  return "no error";
}

TEST(Discovery, AnUnknownInterfaceIsNamedTogetherWithTheKnownOnes) {
  const std::string text = refusal_of_interface("nosuch0");
  EXPECT_EQ(text.find("interface \"nosuch0\" (ATOLL_IFACE) does not exist; this machine has: "), 0U) << text;
  EXPECT_NE(text.find("lo"), std::string::npos) << text;
}

TEST(Discovery, AnInterfaceThatIsDownIsNotCalledAbsent) {
  constexpr int kNotAllowed = 77;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // In a new network namespace the loopback interface is down until it is brought up.
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(kNotAllowed);
    const std::string wanted = "interface \"lo\" (ATOLL_IFACE) is down or has no IP address; this machine has: lo";
    ::_exit(refusal_of_interface("lo") == wanted ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Discovery, TheOptionComesBeforeTheInterfaceBeforeTheRoute) {
  EndpointOptions options;
  options.route_hint = "127.0.0.1";
  EXPECT_EQ(advertised_hosts(options).front(), "127.0.0.1");
  options.interface = "lo";
  EXPECT_EQ(advertised_hosts(options).front(), "127.0.0.1");
  options.advertised_address = "10.1.2.3";
  EXPECT_EQ(advertised_hosts(options), std::vector<std::string>{"10.1.2.3"});
  options.advertised_address = "::1";
  EXPECT_EQ(advertised_hosts(options), std::vector<std::string>{"[::1]"});
  options.advertised_address = "name.invalid";
  EXPECT_THROW(advertised_hosts(options), Error);
  options = {};
  EXPECT_FALSE(advertised_hosts(options).empty());
}

TEST(Discovery, TheHostIsALabelOrTheMachine) {
  EXPECT_EQ(host_identity("left"), "left");
  EXPECT_EQ(host_identity(""), host_identity(""));
  EXPECT_EQ(host_identity("").size(), 32U);
}

TEST(SocketAddress, TellsWhetherBothEndsAreOnOneHost) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const Fd listener = try_listen(*parse_ip(host, 0));
    if (!listener) continue;  // a machine without IPv6
    const SocketAddress there = local_address(listener.get());
    const Fd socket = open_socket(there.family());
    static_cast<void>(start_connecting(socket.get(), there));
    pollfd connected{socket.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&connected, 1, 60'000), 1);
    ASSERT_EQ(take_error(socket.get()), 0);
    EXPECT_TRUE(has_one_host(socket.get())) << host;
  }
  EXPECT_FALSE(has_one_host(open_socket(AF_UNIX).get()));
  EXPECT_FALSE(has_one_host(-1));
}

}  // namespace
}  // namespace atl::transport
