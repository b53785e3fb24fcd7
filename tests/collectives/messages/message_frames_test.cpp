// SPDX-License-Identifier: Apache-2.0
// Random frames from a peer: of messages, between sends and receives of this rank, and of collectives.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/fuzz/collective_frames_target.h"
#include "tests/fuzz/messages_target.h"

namespace atl::test {
namespace {

TEST(MessageFrames, MadeUpAtRandom) {
  std::mt19937 random(20261124);  // NOLINT
  for (int i = 0; i < 400; ++i) {
    std::vector<std::byte> bytes(1 + random() % 200);
    for (std::byte& byte : bytes) byte = std::byte(random() % (i % 2 == 0 ? 256 : 8));
    fuzz::messages(bytes);
  }
}

/// A device's messages in both directions, with generated frames and a network that fails in between.
TEST(MessageFrames, OfDevices) {
  std::mt19937 random(20261125);  // NOLINT
  const std::vector<std::vector<int>> steps = {
      {0x70, 0x20, 0x4e},                          // receives 20000 bytes on the device
      {0x45, 7, 1, 0x20, 0x4e, 0, 0, 0x20, 0x4e},  // which a peer announces
      {0x51, 0x20, 0x4e},                          // sends 20000 bytes from there
      {0x22},                                      // grants what was announced
      {0x03},                                      // a copy, or a network transfer, ends
      {0x23},                                      // or fails
      {0x46, 8, 1, 0, 0, 0, 0, 0, 0},              // the peer reports the arrival of one
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bytes(1);
    for (int step = 0; step < 12; ++step) {
      for (const int byte : steps[random() % steps.size()]) bytes.push_back(std::byte(byte));
    }
    if (i % 3 == 0) bytes[random() % bytes.size()] = std::byte(random() % 256);
    fuzz::messages(bytes);
  }
}

transport::FrameHeader frame(collectives::FrameKind kind, std::uint64_t tag, std::uint64_t count) {
  transport::FrameHeader header;
  header.kind = static_cast<std::uint8_t>(kind);
  header.dtype = static_cast<std::uint8_t>(collectives::DataType::kUInt8);
  header.tag = tag;
  header.sequence = 1;
  header.count = count;
  return header;
}

/// The unchanged sequence works: both directions succeed if the peer keeps to the rules.
TEST(MessageFrames, FromDeviceToDevice) {
  constexpr std::uint64_t kBytes = 20'000;
  fuzz::MessageGroup group(false);
  group.receive(1, 1, kBytes, true);
  group.send_frame(frame(collectives::FrameKind::kAnnounceDirect, 1, kBytes), 0);
  while (group.direct() < 1) {
    if (!group.work(false)) std::this_thread::yield();
  }
  group.send(1, kBytes, true);
  for (int ended = 0; ended < 2;) {  // a copy into the ring, and its way to the peer
    group.listen(true);
    if (group.work(false)) ++ended;
  }
  group.send_frame(frame(collectives::FrameKind::kLanded, 1, 0), 0);
  while (group.direct() < 2) std::this_thread::yield();
}

TEST(CollectiveFrames, AsTheyBelongEndEveryCallWell) {
  for (const int how : {0, 1, 2, 3}) {
    for (int operation = 0; operation < 9; ++operation) {
      for (const int count : {0, 1, 100, 255, 1500}) {
        std::vector<std::byte> bytes;
        for (const int byte : {how, operation, operation, operation % 3, count % 256, count / 256})
          bytes.push_back(std::byte(byte));
        EXPECT_EQ(fuzz::collective_frames(bytes), 1) << how << " " << operation << " " << count;
      }
    }
  }
}

TEST(CollectiveFrames, ChangedAtRandom) {
  std::mt19937 random(20261125);  // NOLINT
  int ended_well = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(1 + random() % 60);
    for (std::byte& byte : bytes) byte = std::byte(random() % (i % 2 == 0 ? 256 : 16));
    ended_well += fuzz::collective_frames(bytes);
  }
  EXPECT_GT(ended_well, 100);
}

}  // namespace
}  // namespace atl::test
