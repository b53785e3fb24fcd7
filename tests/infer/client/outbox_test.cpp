// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace atl::infer {
namespace {

using Bytes = std::vector<std::byte>;

wire::FrameHeader frame_of(std::uint64_t inference, std::int32_t tensor, std::uint64_t offset, std::uint32_t bytes,
                           std::uint32_t message_bytes) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kTensor;
  header.id = inference;
  header.tensor = tensor;
  header.rows_end = 1;
  header.offset = offset;
  header.payload_bytes = bytes;
  header.message_bytes = message_bytes;
  return header;
}

// A message of an inference in frames of at most 10 bytes, which the caller owns.
void push(Outbox& outbox, std::uint64_t inference, std::int32_t tensor, const Bytes& bytes) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += 10) {
    const std::size_t size = std::min<std::size_t>(10, bytes.size() - offset);
    outbox.push(
        frame_of(inference, tensor, offset, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(bytes.size())),
        {std::span(bytes).subspan(offset, size), nullptr});
  }
}

Bytes payload_of(const Outbox::Frame& frame) { return {frame.bytes->begin() + wire::kHeaderBytes, frame.bytes->end()}; }

TEST(Outbox, PayloadsGoToMemoryThatHasRoomForThem) {
  Outbox outbox;
  PayloadWriter memory;
  const PayloadReader reader(memory.memory());
  const Bytes large(kMinLentBytes, std::byte{5});
  const Bytes little(10, std::byte{6});
  const auto size = static_cast<std::uint32_t>(large.size());
  outbox.push(frame_of(1, 0, 0, size, size), {large, nullptr});
  push(outbox, 1, 1, little);
  const auto lent = outbox.take(&memory);
  const auto whole = outbox.take(&memory);
  ASSERT_TRUE(lent && whole);
  EXPECT_EQ(lent->header.kind, wire::FrameKind::kTensor);
  EXPECT_EQ(payload_of(*whole), little);
  wire::FrameParser().push(*lent->bytes, [&](const wire::ReceivedFrame& frame) {
    ASSERT_EQ(frame.header.kind, wire::FrameKind::kLent);
    EXPECT_TRUE(std::ranges::equal(reader.at(wire::lent_by(frame)), large));
  });
}

TEST(Outbox, WhatIsPushedLeavesInOrder) {
  Outbox outbox;
  const Bytes bytes(25, std::byte{7});
  outbox.push(wire::Run{1, 5, 1, 0});
  push(outbox, 5, 0, bytes);
  outbox.push(wire::Cancel{5});
  ASSERT_TRUE(std::holds_alternative<wire::Run>(outbox.take()->message.value()));
  std::size_t there = 0;
  for (int i = 0; i < 3; ++i) {
    const auto frame = outbox.take();
    ASSERT_FALSE(frame->message);
    EXPECT_EQ(frame->header.offset, there);
    EXPECT_TRUE(std::ranges::equal(payload_of(*frame), std::span(bytes).subspan(there, i < 2 ? 10 : 5)));
    wire::FrameParser parser;
    int parsed = 0;
    parser.push(*frame->bytes, [&](const wire::ReceivedFrame& received) {
      ++parsed;
      EXPECT_EQ(received.header, frame->header);
    });
    EXPECT_EQ(parsed, 1);
    there += payload_of(*frame).size();
  }
  EXPECT_EQ(there, bytes.size());
  EXPECT_TRUE(std::holds_alternative<wire::Cancel>(outbox.take()->message.value()));
  EXPECT_FALSE(outbox.take());
}

TEST(Outbox, WhatIsGivenUpNeverLeaves) {
  Outbox outbox;
  Bytes bytes(35, std::byte{1});
  const Bytes others(10, std::byte{2});
  push(outbox, 5, 3, bytes);
  push(outbox, 5, 4, bytes);
  push(outbox, 6, 0, others);
  const auto first = outbox.take();
  const Outbox::Unsent unsent = outbox.over(5, false);
  EXPECT_EQ(unsent.bytes, 25U + 35U);
  ASSERT_TRUE(unsent.cut);
  EXPECT_EQ(unsent.cut->tensor, 3);
  EXPECT_EQ(unsent.cut->offset, 10U);
  std::ranges::fill(bytes, std::byte{9});
  EXPECT_EQ(payload_of(*first), Bytes(10, std::byte{1})) << "a frame that was taken no longer needs the caller's bytes";
  EXPECT_EQ(outbox.take()->header.id, 6U);
  EXPECT_FALSE(outbox.take());
}

TEST(Outbox, AMessageThatHasNotBegunIsNotCut) {
  Outbox outbox;
  const Bytes bytes(20);
  push(outbox, 5, 0, bytes);
  EXPECT_FALSE(outbox.over(5, false).cut);
  EXPECT_EQ(outbox.over(5, false).bytes, 0U) << "twice";
  EXPECT_FALSE(outbox.take());
}

TEST(Outbox, WhatLeavesAfterTheEndIsCopied) {
  Outbox outbox;
  Bytes bytes(20, std::byte{1});
  push(outbox, 5, 0, bytes);
  EXPECT_EQ(outbox.over(5, true).bytes, 0U);
  std::ranges::fill(bytes, std::byte{9});
  EXPECT_EQ(payload_of(*outbox.take()), Bytes(10, std::byte{1}));
  outbox.clear();
  EXPECT_FALSE(outbox.take());
}

}  // namespace
}  // namespace atl::infer
