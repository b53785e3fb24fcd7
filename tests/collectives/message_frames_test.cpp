// SPDX-License-Identifier: Apache-2.0
// Frames of messages that a peer has made up at random, between sends and receives of this rank.
#include <gtest/gtest.h>

#include <random>

#include "tests/fuzz/messages_target.h"

namespace atl::testing {
namespace {

TEST(MessageFrames, MadeUpAtRandom) {
  std::mt19937 random(20261124);  // NOLINT
  for (int i = 0; i < 400; ++i) {
    std::vector<std::byte> bytes(1 + random() % 200);
    for (std::byte& byte : bytes) byte = std::byte(random() % (i % 2 == 0 ? 256 : 8));
    fuzz::messages(bytes);
  }
}

}  // namespace
}  // namespace atl::testing
