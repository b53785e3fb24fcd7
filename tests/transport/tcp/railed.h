// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/peers.h"
#include "tests/support/relay.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/link_contract.h"

namespace atl::test {

inline const transport::ChannelId kRailedChannel{.group = 1, .index = 0, .bell = transport::Bell::kCollective};

inline transport::EndpointOptions railed(int index, std::size_t rails, std::size_t window = 65536) {
  transport::EndpointOptions options = tcp_options(index);
  options.tcp_window_bytes = window;
  for (std::size_t i = 1; i <= rails; ++i) options.rails += (i == 1 ? "127.0.0." : ",127.0.0.") + std::to_string(i);
  return options;
}

inline bool has(const transport::Link& link, const std::string& part) {
  return link.describe().find(part) != std::string::npos;
}

/// Two endpoints in this process; every rail leads through a relay of its own.
struct Railed {
  explicit Railed(std::size_t rails, Relay::Path path = {}, std::size_t window = 65536)
      : options{railed(0, rails, window), railed(1, rails, window)},
        first(options[0], observers[0]),
        second(options[1], observers[1]) {
    transport::PeerAddress through = second.address();
    for (transport::RailAddress& each : through.rails) {
      relays.push_back(std::make_unique<Relay>(each.tcp, path));
      each.tcp = relays.back()->address();
    }
    through.tcp = {relays.front()->address()};
    links[0] = &first.link(through);
    wait_until("the link", [&] { return links[0]->state() == transport::LinkState::kUp && !second.links().empty(); });
    links[1] = &second.link(first.address());
    wait_for_rails(rails);
  }

  void wait_for_rails(std::size_t count) {
    const std::string wanted = "over " + std::to_string(count) + " of " + std::to_string(relays.size()) + " rails";
    wait_until(wanted, [&] { return has(*links[0], wanted) && has(*links[1], wanted); });
  }

  /// Sends frames both ways until `count` have arrived on each side, in order and intact.
  void exchange(std::uint64_t count, std::size_t largest) {
    transport::Channel* channels[2] = {&links[0]->channel(kRailedChannel), &links[1]->channel(kRailedChannel)};
    const auto bytes_of_frame = [&](std::uint64_t number) { return (number * 7919 + 1) % (largest + 1); };
    std::uint64_t sent[2] = {};
    std::uint64_t got[2] = {};
    wait_until("the transfer", [&] {
      for (std::size_t side : {0U, 1U}) {
        while (sent[side] < count) {
          const std::size_t bytes = bytes_of_frame(sent[side]);
          if (!channels[side]->try_send(numbered_header(sent[side], bytes), pattern(sent[side], bytes))) break;
          ++sent[side];
        }
        while (const transport::Frame* frame = channels[side]->front()) {
          const auto expected = pattern(got[side], bytes_of_frame(got[side]));
          EXPECT_EQ(frame->header.sequence, numbered_header(got[side], 0).sequence);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), frame->payload.begin(), frame->payload.end()));
          ++got[side];
          channels[side]->pop();
        }
      }
      return (got[0] == count && got[1] == count) || testing::Test::HasFailure();
    });
  }

  void expect_no_failure() {
    EXPECT_EQ(observers[0].failure_count() + observers[1].failure_count(), 0U);
    for (transport::Link* link : links) EXPECT_EQ(link->state(), transport::LinkState::kUp) << link->describe();
  }

  transport::EndpointOptions options[2];
  RecordingObserver observers[2];
  transport::Endpoint first;
  transport::Endpoint second;
  std::vector<std::unique_ptr<Relay>> relays;
  transport::Link* links[2] = {};
};

}  // namespace atl::test
