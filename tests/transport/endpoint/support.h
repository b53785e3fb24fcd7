// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_of.h"
#include "tests/support/peers.h"

namespace atl::test {

inline transport::EndpointOptions tcp_options(int index) {
  return peer_options(transport::TransportChoice::kTcp, index);
}

inline bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

/// Waits until a frame can be sent from `from` to `to`, and receives it there.
inline void expect_connected(transport::Endpoint& from, transport::Endpoint& to,
                             const transport::PeerAddress& to_as_seen) {
  const transport::ChannelId id{.group = 1, .index = 0, .bell = transport::Bell::kCollective};
  transport::Channel& out = from.link(to_as_seen).channel(id);
  wait_on_bell(from, transport::Bell::kCollective, "the link",
               [&] { return out.try_send(transport::FrameHeader{.sequence = 77}, {}); });
  transport::Channel& in = to.link(from.address()).channel(id);
  wait_on_bell(to, transport::Bell::kCollective, "the frame", [&] { return in.front() != nullptr; });
  EXPECT_EQ(in.front()->header.sequence, 77U);
  in.pop();
}
inline void expect_connected(transport::Endpoint& from, transport::Endpoint& to) {
  expect_connected(from, to, to.address());
}

}  // namespace atl::test
