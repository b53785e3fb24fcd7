// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "atoll/transport/link.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {
namespace {

using Bytes = std::vector<std::byte>;

/// A message that says its own number in the prefix and in every byte of its body.
struct Numbered {
  Prefix prefix;
  Bytes body;
  Numbered(Type type, std::uint32_t number, std::size_t bytes)
      : prefix{.type = type, .channel = number, .length = static_cast<std::uint32_t>(bytes)},
        body(bytes + (type == Type::kData ? sizeof(FrameHeader) : 0), static_cast<std::byte>(number)) {}
};

/// The socket: takes at most `limit` bytes of what the queue offers.
void take(SendQueue& queue, Bytes& stream, std::size_t limit) {
  std::array<iovec, SendQueue::kMaxPieces> pieces;
  const std::size_t count = queue.gather(pieces);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count && taken < limit; ++i) {
    const std::size_t step = std::min(limit - taken, pieces[i].iov_len);
    const auto* from = static_cast<const std::byte*>(pieces[i].iov_base);
    stream.insert(stream.end(), from, from + step);
    taken += step;
  }
  queue.consume(taken);
}

/// Cuts a stream back into messages; fails the test when one is not whole.
std::vector<Prefix> cut(const Bytes& stream) {
  std::vector<Prefix> found;
  for (std::size_t at = 0; at < stream.size();) {
    const auto prefix = read_as<Prefix>(std::span(stream).subspan(at));
    EXPECT_EQ(prefix.magic, Prefix::kMagic) << "at byte " << at;
    const std::size_t end = at + message_bytes(prefix);
    if (prefix.magic != Prefix::kMagic || end > stream.size()) break;
    for (std::size_t i = at + sizeof(Prefix); i < end; ++i) {
      if (stream[i] != static_cast<std::byte>(prefix.channel)) {
        ADD_FAILURE() << "a byte of message " << prefix.channel << " is another's";
        return found;
      }
    }
    found.push_back(prefix);
    at = end;
  }
  return found;
}

TEST(TcpSendQueue, UrgentMessagesOvertakeDataBetweenMessages) {
  SendQueue queue(4096);
  const Numbered first(Type::kData, 1, 1000), second(Type::kData, 2, 1000), credit(Type::kCredit, 3, 8);
  queue.push({bytes_of(first.prefix), first.body});
  queue.push({bytes_of(second.prefix), second.body});
  Bytes stream;
  take(queue, stream, 5);  // the first message is under way now
  ASSERT_TRUE(queue.push_urgent({bytes_of(credit.prefix), credit.body}));
  while (!queue.empty()) take(queue, stream, 100);
  const auto found = cut(stream);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].channel, 1U);
  EXPECT_EQ(found[1].channel, 3U);
  EXPECT_EQ(found[2].channel, 2U);
}

TEST(TcpSendQueue, ContinuesAMessageThatTheSocketTookInPart) {
  for (const std::size_t sent : {1U, 12U, 13U, 80U, 1075U}) {
    SendQueue queue(4096);
    const Numbered data(Type::kData, 1, 1000), credit(Type::kCredit, 2, 8);
    Bytes stream;
    const auto prefix = bytes_of(data.prefix);
    for (std::size_t i = 0; i < sent; ++i)
      stream.push_back(i < prefix.size() ? prefix[i] : data.body[i - prefix.size()]);
    queue.push({prefix, data.body}, sent);
    queue.push_urgent({bytes_of(credit.prefix), credit.body});
    while (!queue.empty()) take(queue, stream, 7);
    const auto found = cut(stream);
    ASSERT_EQ(found.size(), 2U) << sent;
    EXPECT_EQ(found[0].channel, 1U);
  }
}

TEST(TcpSendQueue, KeepsRoomForSmallMessages) {
  SendQueue queue(4096);
  const Numbered data(Type::kData, 1, 4000), close(Type::kClose, 2, 0);
  std::size_t accepted = 0;
  while (queue.fits(message_bytes(data.prefix))) {
    queue.push({bytes_of(data.prefix), data.body});
    ++accepted;
  }
  EXPECT_GE(accepted, 1U);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(queue.push_small({bytes_of(close.prefix), close.body}));
  EXPECT_FALSE(queue.half_free());
  Bytes stream;
  while (!queue.empty()) take(queue, stream, 10000);
  EXPECT_EQ(cut(stream).size(), accepted + 1000);
  EXPECT_TRUE(queue.half_free());
}

TEST(TcpSendQueue, AFullUrgentLaneSaysSo) {
  SendQueue queue(4096);
  const Numbered control(Type::kControl, 1, kMaxControlBytes);
  int accepted = 0;
  while (queue.push_urgent({bytes_of(control.prefix), control.body})) ++accepted;
  EXPECT_GT(accepted, 100);
  EXPECT_GT(queue.urgent_bytes(), 100 * kMaxControlBytes);
}

TEST(TcpSendQueue, AnyMixArrivesWholeAndInOrderPerLane) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    SendQueue queue(20000);
    Bytes stream;
    std::deque<std::uint32_t> data_sent, urgent_sent;
    for (std::uint32_t i = 0; i < 2000; ++i) {
      if (random() % 3 != 0) {
        const Numbered data(Type::kData, i, random() % 15000);
        if (queue.fits(message_bytes(data.prefix))) {
          queue.push({bytes_of(data.prefix), data.body});
          data_sent.push_back(i);
        }
      } else {
        const Numbered control(Type::kControl, i, random() % 100);
        if (queue.push_urgent({bytes_of(control.prefix), control.body})) urgent_sent.push_back(i);
      }
      take(queue, stream, random() % 20000);
    }
    while (!queue.empty()) take(queue, stream, 1000);
    for (const auto& prefix : cut(stream)) {
      auto& expected = prefix.type == Type::kData ? data_sent : urgent_sent;
      ASSERT_FALSE(expected.empty());
      ASSERT_EQ(prefix.channel, expected.front()) << "seed " << seed;
      expected.pop_front();
    }
    EXPECT_TRUE(data_sent.empty() && urgent_sent.empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace atl::transport::tcp
