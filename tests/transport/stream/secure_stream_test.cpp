// SPDX-License-Identifier: Apache-2.0
// The promises to two ends that trust each other; strangers are in secure_strangers_test.cpp.
#include "atoll/transport/stream/secure_stream.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "tests/transport/endpoint/support.h"
#include "tests/transport/stream/secure_support.h"

namespace atl::test {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMany = std::size_t{20} << 20;  // more than the system holds for a receiver that does not read

class SecureSizes : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SecureSizes, ArriveInBothDirectionsAtOnce) {
  const std::size_t count = GetParam();
  const auto up = random_bytes(count, 1);
  const auto down = random_bytes(count, 2);
  Ends ends;
  ends.open();
  ends.client.send(up);
  ends.server.send(down);
  EXPECT_TRUE(ends.server.wait_received(count) == up);
  EXPECT_TRUE(ends.client.wait_received(count) == down);
  ends.client.close();
  EXPECT_FALSE(ends.client.wait_closed());
  EXPECT_FALSE(ends.server.wait_closed());
  EXPECT_EQ(ends.server.received().size(), count);
  EXPECT_EQ(ends.client.received().size(), count);
  EXPECT_EQ(ends.client.opens(), 1);
  EXPECT_EQ(ends.client.drains(), count == 0 ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(Bytes, SecureSizes, ::testing::Values(0, 1, 16383, 16384, 16385, std::size_t{1} << 20, kMany));

TEST(SecureStream, KeepsTheOrderOfManyPieces) {
  Ends ends;
  ends.open();
  const auto bytes = random_bytes(300'000, 3);
  std::vector<std::shared_ptr<const ByteVector>> owners;
  ends.client.with([&](SecureStream& stream) {
    const std::size_t sizes[] = {1, 0, 48, 16384, 5, 70000, 0, 16383};
    std::size_t at = 0;
    for (std::size_t i = 0; at < bytes.size(); ++i) {
      const std::size_t size = std::min(sizes[i % std::size(sizes)], bytes.size() - at);
      owners.push_back(std::make_shared<const ByteVector>(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                                          bytes.begin() + static_cast<std::ptrdiff_t>(at + size)));
      stream.send_on_loop({*owners.back(), owners.back()});
      at += size;
    }
    EXPECT_EQ(stream.queued_bytes(), bytes.size());
  });
  EXPECT_TRUE(ends.server.wait_received(bytes.size()) == bytes);
  ends.client.wait_drained();
  EXPECT_EQ(ends.client.queued(), 0U);
  EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](const auto& owner) { return owner.use_count() == 1; }));
}

TEST(SecureStream, SendsWhatWasQueuedBeforeItOpened) {
  Ends ends;
  const auto bytes = random_bytes(100'000, 4);
  ends.begin();
  ends.client.send(bytes);
  ends.server.send(bytes);
  EXPECT_TRUE(ends.server.wait_received(bytes.size()) == bytes);
  EXPECT_TRUE(ends.client.wait_received(bytes.size()) == bytes);
}

TEST(SecureStream, AQueueGrowsAndDrains) {
  Ends ends(key_of(1), key_of(1), {.socket_send_bytes = std::size_t{64} << 10});
  ends.server.when_open = [](End& end) { end.with([](SecureStream& stream) { stream.pause_on_loop(); }); };
  ends.open();
  const auto bytes = random_bytes(kMany, 5);
  auto owner = std::make_shared<const ByteVector>(bytes);
  ends.client.with([&](SecureStream& stream) {
    stream.send_on_loop({*owner, owner});
    EXPECT_EQ(stream.queued_bytes(), kMany);
  });
  wait_until("some bytes are with the system", [&] { return ends.client.queued() < kMany; });
  settle(ends.client_loop);
  settle(ends.server_loop);
  EXPECT_GT(ends.client.queued(), 0U);
  EXPECT_EQ(ends.client.drains(), 0);
  EXPECT_GT(owner.use_count(), 1);
  EXPECT_TRUE(ends.server.received().empty());
  ends.server.with([](SecureStream& stream) { stream.resume_on_loop(); });
  ends.client.wait_drained();
  EXPECT_EQ(ends.client.queued(), 0U);
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_TRUE(ends.server.wait_received(kMany) == bytes);
  ends.client.send(random_bytes(1, 6));
  ends.client.wait_drained(2);
}

TEST(SecureStream, WhatCameWithTheHandshakeSurvivesAPause) {
  // The client's first bytes travel with the end of its handshake: nothing more comes that could wake the server again.
  TcpPair sockets = make_tcp_pair();
  Loop loop("server");
  End server(loop, TlsRole::kServer, key_of(1));
  server.when_open = [](End& end) { end.with([](SecureStream& stream) { stream.pause_on_loop(); }); };
  server.begin(std::move(sockets.server));
  RawEnd raw(std::move(sockets.client));
  transport::TlsSession client(key_of(1), TlsRole::kClient, "the-server", "");
  client.handshake();
  raw.send(std::exchange(client.output(), {}));
  ByteVector answer;
  do {
    const auto more = raw.receive();
    ASSERT_FALSE(more.empty());
    answer = more;
    client.give(answer);
  } while (!client.handshake());
  const auto bytes = random_bytes(16384 + 100, 7);
  for (std::span<const std::byte> rest = bytes; !rest.empty();) rest = rest.subspan(client.write(rest));
  raw.send(client.output());
  server.wait_open();
  settle(loop);
  EXPECT_TRUE(server.received().empty());
  server.with([](SecureStream& stream) { stream.resume_on_loop(); });
  EXPECT_TRUE(server.wait_received(bytes.size()) == bytes);
}

TEST(SecureStream, PausesAfterEveryCall) {
  Ends ends;
  ends.server.when_bytes = [&](End& end) {
    end.with([](SecureStream& stream) { stream.pause_on_loop(); });
    ends.server_loop.post([&end] { end.with([](SecureStream& stream) { stream.resume_on_loop(); }); });
  };
  ends.open();
  const auto bytes = random_bytes(std::size_t{3} << 20, 8);
  ends.client.send(bytes);
  EXPECT_TRUE(ends.server.wait_received(bytes.size()) == bytes);
  ends.client.close();
  EXPECT_FALSE(ends.server.wait_closed());
}

TEST(SecureStream, GivesOutNothingOfHalfARecord) {
  TcpPair sockets = make_tcp_pair();
  Loop loop("server");
  End server(loop, TlsRole::kServer, key_of(1));
  server.begin(std::move(sockets.server));
  RawEnd raw(std::move(sockets.client));
  transport::TlsSession client(key_of(1), TlsRole::kClient, "the-server", "");
  raw.shake_hands(client);
  const auto bytes = random_bytes(10'000, 9);
  EXPECT_EQ(client.write(bytes), bytes.size());
  const std::span<const std::byte> record = client.output();
  raw.send(record.first(record.size() - 1));
  server.wait_open();
  settle(loop);
  EXPECT_TRUE(server.received().empty());
  raw.send(record.last(1));
  EXPECT_TRUE(server.wait_received(bytes.size()) == bytes);
}

TEST(SecureStream, ManyShareALoop) {
  constexpr int kStreams = 40;
  Loop client_loop("client");
  Loop server_loop("server");
  std::deque<End> ends;  // client, server, client, ...
  for (int i = 0; i < kStreams; ++i) {
    TcpPair sockets = make_tcp_pair();
    ends.emplace_back(client_loop, TlsRole::kClient, key_of(i)).begin(std::move(sockets.client));
    ends.emplace_back(server_loop, TlsRole::kServer, key_of(i)).begin(std::move(sockets.server));
  }
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i].send(random_bytes(50'000 + i, static_cast<std::uint32_t>(i)));
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto expected = random_bytes(50'000 + (i ^ 1U), static_cast<std::uint32_t>(i ^ 1U));
    EXPECT_TRUE(ends[i].wait_received(expected.size()) == expected) << i;
  }
}

TEST(SecureStream, AFastOneLeavesOthersTheirTurn) {
  // The loop of the receivers answers small messages while one stream never stops.
  bool stop = false;  // on the client's loop
  Ends busy;
  busy.client.when_drained = [&](End& end) {
    if (!stop) end.send(ByteVector(std::size_t{1} << 20));
  };
  busy.open();
  TcpPair sockets = make_tcp_pair();
  End client(busy.client_loop, TlsRole::kClient, key_of(2));
  End server(busy.server_loop, TlsRole::kServer, key_of(2));
  server.when_bytes = [](End& end) { end.send(ByteVector(1)); };
  busy.client.send(ByteVector(std::size_t{1} << 20));
  server.begin(std::move(sockets.server));
  client.begin(std::move(sockets.client));
  for (std::size_t i = 1; i <= 20; ++i) {
    client.send(ByteVector(1));
    EXPECT_GE(client.wait_received(i).size(), i);
  }
  busy.client.with([&](SecureStream&) { stop = true; });
}

TEST(SecureStream, ClosesAfterItsQueue) {
  Ends ends;
  const auto bytes = random_bytes(kMany, 10);
  ends.open();
  ends.client.send(bytes);
  ends.client.close();
  ends.client.send(random_bytes(100, 11));
  EXPECT_FALSE(ends.server.wait_closed());
  EXPECT_FALSE(ends.client.wait_closed());
  EXPECT_TRUE(ends.server.received() == bytes);
  EXPECT_EQ(ends.client.queued(), 0U);
  ends.client.send(random_bytes(100, 12));
  EXPECT_EQ(ends.client.queued(), 0U) << "a closed stream drops what it is given";
}

TEST(SecureStream, ClosesBeforeItOpened) {
  Ends ends;
  TcpPair sockets = make_tcp_pair();
  ends.client.begin(std::move(sockets.client));
  ends.client.close();
  EXPECT_FALSE(ends.client.wait_closed());
  ends.server.begin(std::move(sockets.server));
  EXPECT_EQ(ends.server.wait_error().kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(ends.client.opens() + ends.server.opens(), 0);
}

TEST(SecureStream, ClosesAfterAQueueThatIsOlderThanTheHandshake) {
  Ends ends;
  const auto bytes = random_bytes(100'000, 13);
  TcpPair sockets = make_tcp_pair();
  ends.client.begin(std::move(sockets.client));
  ends.client.send(bytes);
  ends.client.close();
  ends.server.begin(std::move(sockets.server));
  EXPECT_FALSE(ends.server.wait_closed());
  EXPECT_FALSE(ends.client.wait_closed());
  EXPECT_TRUE(ends.server.received() == bytes);
  EXPECT_EQ(ends.client.opens(), 0) << "it was to close";
}

TEST(SecureStream, BothCloseAtOnce) {
  Ends ends;
  ends.open();
  ends.client.close();
  ends.server.close();
  EXPECT_FALSE(ends.client.wait_closed());
  EXPECT_FALSE(ends.server.wait_closed());
}

TEST(SecureStream, LingersNoLongerThanToldTo) {
  Ends ends;
  ends.server.when_open = [](End& end) { end.with([](SecureStream& stream) { stream.pause_on_loop(); }); };
  ends.open();
  ends.client.send(ByteVector(kMany));
  ends.client.close(milliseconds(30));
  const Error error = ends.client.wait_error();
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_TRUE(contains(error, "the-server:1")) << error.what();
}

TEST(SecureStream, ClosesInOrderWithoutLingering) {
  Ends ends;
  ends.open();
  const auto bytes = random_bytes(1000, 14);
  ends.client.with([&](SecureStream& stream) {
    stream.send_on_loop({bytes, nullptr});
    stream.close_on_loop(milliseconds(0));
  });
  EXPECT_FALSE(ends.client.wait_closed());
  EXPECT_FALSE(ends.server.wait_closed());
  EXPECT_TRUE(ends.server.received() == bytes);
}

TEST(SecureStream, AnEndWithoutAGoodbyeIsALostPeer) {
  Ends ends;
  ends.open();
  const auto bytes = random_bytes(1000, 15);
  ends.client.send(bytes);
  ends.client.wait_drained();
  ends.client.destroy();
  const Error error = ends.server.wait_error();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(error, "the-client:1 ended the connection without a goodbye")) << error.what();
  EXPECT_TRUE(ends.server.received() == bytes);
}

TEST(SecureStream, SendingToALostPeerIsAnErrorAndNoSignal) {
  Ends ends;
  ends.server.when_bytes = [](End& end) { end.destroy(); };
  ends.open();
  ends.client.send(ByteVector(kMany));
  EXPECT_EQ(ends.client.wait_error().kind(), ErrorKind::kPeerLost);
}

TEST(SecureStream, ABrokenConnectionIsReportedDuringAPause) {
  TcpPair sockets = make_tcp_pair();
  Loop loop("server");
  End server(loop, TlsRole::kServer, key_of(1));
  server.when_open = [](End& end) { end.with([](SecureStream& stream) { stream.pause_on_loop(); }); };
  server.begin(std::move(sockets.server));
  RawEnd raw(std::move(sockets.client));
  transport::TlsSession client(key_of(1), TlsRole::kClient, "the-server", "");
  raw.shake_hands(client);
  server.wait_open();
  raw.reset();
  const Error error = server.wait_error();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(error, "reset")) << error.what();
}

TEST(SecureStream, WhatCameBeforeTheConnectionBrokeIsRead) {
  TcpPair sockets = make_tcp_pair();
  Loop loop("client");
  End client(loop, TlsRole::kClient, key_of(1));
  client.begin(std::move(sockets.client));
  RawEnd raw(std::move(sockets.server));
  transport::TlsSession server(key_of(1), TlsRole::kServer, "the-client", "");
  raw.shake_hands(server);
  client.wait_open();
  const auto bytes = random_bytes(100, 18);
  EXPECT_EQ(server.write(bytes), bytes.size());
  server.say_goodbye();
  loop.run_and_wait([&] {  // the break just before the client sends, so that it hears of it by sending
    loop.post([&] {
      raw.send(server.output());
      raw.reset();
    });
    client.send(ByteVector(10));
  });
  EXPECT_FALSE(client.wait_closed());
  EXPECT_TRUE(client.received() == bytes);
}

TEST(SecureStream, APeerThatTakesNothingIsFound) {
  Ends ends(key_of(1), key_of(1), {.silence = milliseconds(1000)});
  ends.server.when_open = [](End& end) { end.with([](SecureStream& stream) { stream.pause_on_loop(); }); };
  ends.open();
  ends.client.send(ByteVector(kMany));
  const Error error = ends.client.wait_error();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(error, "no longer takes or acknowledges")) << error.what();
}

TEST(SecureStream, AsksTheSystemForItsOptions) {
  Ends ends(key_of(1), key_of(1), {.silence = milliseconds(8000), .socket_send_bytes = 30'000});
  TcpPair sockets = make_tcp_pair();
  const Fd same(::dup(sockets.client.get()));
  ends.client.begin(std::move(sockets.client));
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(same.get(), level, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(option(IPPROTO_TCP, TCP_NOTSENT_LOWAT), 30'000);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 8000);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 4);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 2);
  EXPECT_NE(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_NE(option(IPPROTO_TCP, TCP_NODELAY), 0);
}

enum class Call { kOpen, kBytes, kDrained, kClosed };

class DestroyedInside : public ::testing::TestWithParam<Call> {};

TEST_P(DestroyedInside, AStreamTouchesItselfNoMore) {
  int calls = 0;  // of the hook, on the server's loop
  Ends ends;
  const End::Hook destroy = [&](End& end) {
    ++calls;
    end.destroy();
  };
  switch (GetParam()) {
    case Call::kOpen: ends.server.when_open = destroy; break;
    case Call::kBytes: ends.server.when_bytes = destroy; break;
    case Call::kDrained: ends.server.when_drained = destroy; break;
    case Call::kClosed: ends.server.when_closed = destroy; break;
  }
  ends.begin();
  ends.server.send(random_bytes(1000, 16));
  ends.client.send(random_bytes(500'000, 17));
  ends.client.close();
  ends.client.wait_closed();
  settle(ends.server_loop);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ends.server.calls_after_close(), 0);
}

INSTANTIATE_TEST_SUITE_P(Calls, DestroyedInside,
                         ::testing::Values(Call::kOpen, Call::kBytes, Call::kDrained, Call::kClosed));

}  // namespace
}  // namespace atl::test
