// SPDX-License-Identifier: Apache-2.0
// Frames of a peer that break the message protocol cause a kProtocol error, and no byte is written outside the buffer.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>

#include "atoll/collectives/describe.h"
#include "atoll/collectives/peer_ports.h"
#include "tests/support/peers.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using transport::Bell;
using transport::FrameHeader;

constexpr std::byte kGuard{0xaa};
constexpr std::uint64_t kTag = 7;

FrameHeader header(FrameKind kind, std::uint64_t count, std::uint64_t id, std::size_t payload_bytes) {
  FrameHeader header;
  header.kind = static_cast<std::uint8_t>(kind);
  header.operation = static_cast<std::uint8_t>(Operation::kSend);
  header.dtype = static_cast<std::uint8_t>(DataType::kUInt8);
  header.tag = kTag;
  header.count = count;
  header.sequence = id;
  header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  return header;
}

/// Rank 0 runs normally; the test writes into the channel of rank 1's messages.
class MessageProtocol : public ::testing::TestWithParam<transport::TransportChoice> {
 protected:
  MessageProtocol() { connect(); }

  /// Makes a new pair of ranks that have exchanged nothing.
  void connect() {
    ranks_.reset();
    done_ = {};
    RankOptions options;
    options.islands = layout("AB");
    options.transport = GetParam();
    ranks_ = std::make_unique<Ranks>(options);
    ranks_->run_ok([](Group& group) { group.barrier(); });
    transport::Link& link = *endpoint().links().at(0);
    channel_ = &link.channel({ranks_->group(1).id(), static_cast<std::uint32_t>(Port::kMessages), Bell::kPointToPoint});
  }

  transport::Endpoint& endpoint() { return ranks_->context(1)->endpoint(); }

  void send_frame(const FrameHeader& header) {
    const std::vector<std::byte> payload(header.payload_bytes, std::byte{1});
    wait_on_bell(endpoint(), Bell::kPointToPoint, "room", [&] { return channel_->try_send(header, payload); });
  }

  /// The next frame's header; it must be of this kind.
  FrameHeader expect(FrameKind kind) {
    wait_on_bell(endpoint(), Bell::kPointToPoint, "a frame", [&] { return channel_->front() != nullptr; });
    const FrameHeader found = channel_->front()->header;
    EXPECT_EQ(found.kind, static_cast<std::uint8_t>(kind));
    channel_->pop();
    return found;
  }

  void grant(std::uint64_t id) {
    FrameHeader frame = header(FrameKind::kGrant, 0, 0, 0);
    frame.tag = id;
    send_frame(frame);
  }

  /// Posts a receive of `bytes` with `tag` on rank 0, into memory with a guard after it.
  void post(std::size_t bytes, std::uint64_t tag = kTag) {
    ranks_->group(0).receive(
        1, tag, DataType::kUInt8, std::span(memory_).first(bytes), {},
        [this](std::exception_ptr error, int) { error ? done_.set_exception(error) : done_.set_value(); });
  }

  void expect_protocol_error(const std::string& part) {
    try {
      done_.get_future().get();
      ADD_FAILURE() << "the message was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1 "), std::string::npos) << error.what();
    }
  }

  void expect_guard(std::size_t bytes) {
    EXPECT_TRUE(std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(bytes), memory_.end(),
                            [](std::byte byte) { return byte == kGuard; }));
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096, kGuard);
  std::promise<void> done_;
  std::unique_ptr<Ranks> ranks_;
  transport::Channel* channel_ = nullptr;
};

TEST_P(MessageProtocol, AMessageLongerThanItSays) {
  post(16);
  send_frame(header(FrameKind::kMessage, 16, 1, 64));
  expect_protocol_error("a message of 16 bytes with a payload of 64");
  expect_guard(0);
}

TEST_P(MessageProtocol, AMessageLongerThanItSaysThatCameFirst) {
  send_frame(header(FrameKind::kMessage, 16, 1, 64));
  post(16);
  expect_protocol_error("a message of 16 bytes with a payload of 64");
  expect_guard(0);
}

TEST_P(MessageProtocol, AMessageBetweenDevicesOverALinkThatHasNone) {
  post(16);
  send_frame(header(FrameKind::kAnnounceDirect, 16, 1, 0));
  expect_protocol_error("rank 1 announced a message between devices on a link that does not support them");
  expect_guard(0);
}

TEST_P(MessageProtocol, AMessageThatNobodySentHasLanded) {
  post(16);
  send_frame(header(FrameKind::kLanded, 0, 1, 0));
  expect_protocol_error("rank 1 reported the arrival of a message that was not sent");
}

TEST_P(MessageProtocol, AMessageShorterThanItSays) {
  post(16);
  send_frame(header(FrameKind::kMessage, 16, 1, 8));
  expect_protocol_error("a message of 16 bytes with a payload of 8");
}

TEST_P(MessageProtocol, AnAnnouncementWithAPayload) {
  post(16);
  send_frame(header(FrameKind::kAnnounce, 16, 1, 64));
  expect_protocol_error("with a payload of 64");
  expect_guard(0);
}

TEST_P(MessageProtocol, MoreThanAReceiverSetsAside) {
  post(16, kTag + 1);
  for (std::uint64_t id = 0; id < 20; ++id) send_frame(header(FrameKind::kMessage, 16384, id, 16384));
  expect_protocol_error("more messages than it may");
}

TEST_P(MessageProtocol, MoreAnnouncementsThanAReceiverSetsAside) {
  post(16, kTag + 1);
  for (std::uint64_t id = 0; id < 1100; ++id) send_frame(header(FrameKind::kAnnounce, 100'000, id, 0));
  expect_protocol_error("more messages than it may");
}

TEST_P(MessageProtocol, AGrantForAMessageThatWasNotAnnounced) {
  constexpr std::uint64_t kAnnounced = 1024;  // at most, and not granted
  static const std::vector<std::byte> data(20'000);
  for (std::uint64_t i = 0; i <= kAnnounced; ++i)
    ranks_->group(0).send(1, kTag, DataType::kUInt8, data, {}, [](std::exception_ptr) {});
  std::vector<std::uint64_t> ids;
  while (ids.size() < kAnnounced) ids.push_back(expect(FrameKind::kAnnounce).sequence);
  const std::uint64_t unannounced = ids.back() + 1;
  grant(unannounced);
  grant(ids[0]);
  EXPECT_EQ(expect(FrameKind::kPayload).tag, ids[0]);
  EXPECT_EQ(expect(FrameKind::kAnnounce).sequence, unannounced);  // only now is there room for it
  grant(ids[1]);
  EXPECT_EQ(expect(FrameKind::kPayload).tag, ids[1]) << "of a message that there was no room for";
  ranks_->group(0).abort("the test is over");
}

TEST_P(MessageProtocol, MutatedFramesWriteNothingOutside) {
  constexpr std::uint32_t kSeed = 20240611;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  constexpr std::size_t kBytes = 64;
  for (int round = 0; round < 40; ++round) {
    connect();
    for (int receive = 0; receive < 4; ++receive)
      ranks_->group(0).receive(1, kTag, DataType::kUInt8, std::span(memory_).first(kBytes), {},
                               [](std::exception_ptr, int) {});
    post(kBytes, kTag + 1);
    for (std::uint64_t id = 0; id < 8; ++id) {
      FrameHeader frame = header(FrameKind::kMessage, kBytes, id, kBytes);
      switch (random() % 12) {  // the first broken one ends the group, so most are whole
        case 0: frame.payload_bytes = static_cast<std::uint32_t>(random() % 300); break;
        case 1: frame.count = random() % 300; break;
        case 2: frame.kind = static_cast<std::uint8_t>(random() % 9); break;
        case 3: frame.tag = random() % 10; break;
        case 4: frame.offset = random(); break;
        default: break;
      }
      send_frame(frame);
    }
    FrameHeader last = header(FrameKind::kMessage, kBytes, 9, kBytes);
    last.tag = kTag + 1;
    send_frame(last);
    done_.get_future().wait();  // received, or failed with the group
    expect_guard(kBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Links, MessageProtocol,
                         ::testing::Values(transport::TransportChoice::kShm, transport::TransportChoice::kTcp),
                         [](const auto& param_info) {
                           return param_info.param == transport::TransportChoice::kShm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace atl::test
