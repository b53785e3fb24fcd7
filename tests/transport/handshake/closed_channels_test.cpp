// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/closed_channels.h"

#include <gtest/gtest.h>

namespace atl::transport {
namespace {

ChannelId channel_of(std::uint64_t group) { return {.group = group, .index = 0, .bell = Bell::kCollective}; }

TEST(ClosedChannels, AreTakenOnceAndTheOldestIsForgotten) {
  ClosedChannels closed;
  for (std::uint64_t i = 0; i < kMaxUnclaimedChannels; ++i) closed.add(channel_of(i));
  closed.add(channel_of(1));  // is one already
  EXPECT_TRUE(closed.take(channel_of(0)));
  EXPECT_FALSE(closed.take(channel_of(0)));
  closed.add(channel_of(kMaxUnclaimedChannels));
  closed.add(channel_of(kMaxUnclaimedChannels + 1));
  EXPECT_FALSE(closed.take(channel_of(1)));
  EXPECT_TRUE(closed.take(channel_of(2)));
  EXPECT_TRUE(closed.take(channel_of(kMaxUnclaimedChannels + 1)));
}

}  // namespace
}  // namespace atl::transport
