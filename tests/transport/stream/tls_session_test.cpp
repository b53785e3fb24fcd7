// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/tls_session.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/fuzz/tls_target.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/stream/secure_support.h"

namespace atl::test {
namespace {

using transport::TlsSession;

class Sessions : public ::testing::Test {
 protected:
  /// Gives `bytes` to `to` in pieces and returns what comes out.
  static ByteVector read_in_pieces(TlsSession& to, std::span<const std::byte> bytes, std::size_t piece) {
    ByteVector out;
    ByteVector buffer(1000);
    while (!bytes.empty()) {
      const std::size_t count = std::min(piece, bytes.size());
      to.give(bytes.first(count));
      bytes = bytes.subspan(count);
      while (const std::size_t got = to.read(buffer)) {
        out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(got));
      }
    }
    return out;
  }

  TlsSession client_{key_of(1), TlsRole::kClient, "the server", ""};
  TlsSession server_{key_of(1), TlsRole::kServer, "the client", ""};
};

TEST_F(Sessions, ShakeHandsByteByByte) {
  bool client_done = client_.handshake();
  bool server_done = false;
  for (int flights = 0; flights < 4 && !(client_done && server_done); ++flights) {
    for (const std::byte byte : std::exchange(client_.output(), {})) {
      server_.give({&byte, 1});
      server_done = server_.handshake();
    }
    for (const std::byte byte : std::exchange(server_.output(), {})) {
      client_.give({&byte, 1});
      client_done = client_.handshake();
    }
  }
  EXPECT_TRUE(client_done && server_done);
  EXPECT_TRUE(server_.output().empty()) << "no ticket, nothing after the handshake";
}

TEST_F(Sessions, CarryBytesInPiecesOfAnySize) {
  fuzz::complete_handshake(client_, server_);
  const auto bytes = random_bytes(40'000, 1);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{21}, std::size_t{16406}, bytes.size() * 2}) {
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t taken = client_.write(rest);
      ASSERT_GT(taken, 0U);
      ASSERT_LE(taken, 16384U);
      rest = rest.subspan(taken);
    }
    EXPECT_TRUE(read_in_pieces(server_, std::exchange(client_.output(), {}), piece) == bytes) << piece;
  }
  EXPECT_FALSE(server_.has_ended());
  client_.say_goodbye();
  EXPECT_TRUE(read_in_pieces(server_, client_.output(), 5).empty());
  EXPECT_TRUE(server_.has_ended());
}

TEST_F(Sessions, RenewTheirKeysAsOftenAsAskedFor) {
  fuzz::complete_handshake(client_, server_);
  client_.renew_keys_after(3);
  server_.renew_keys_after(5);
  const auto bytes = random_bytes(100, 4);
  for (int record = 0; record < 1000; ++record) {
    ASSERT_EQ(client_.write(bytes), bytes.size());
    ASSERT_TRUE(read_in_pieces(server_, std::exchange(client_.output(), {}), 7) == bytes) << record;
    ASSERT_EQ(server_.write(bytes), bytes.size());
    ASSERT_TRUE(read_in_pieces(client_, std::exchange(server_.output(), {}), 7) == bytes) << record;
  }
  EXPECT_EQ(client_.key_renewals(), 333U);
  EXPECT_EQ(server_.key_renewals(), 199U);
}

TEST_F(Sessions, RefuseRecordsThatArePlayedBack) {
  fuzz::complete_handshake(client_, server_);
  const auto bytes = random_bytes(300, 5);
  ASSERT_EQ(client_.write(bytes), bytes.size());
  const auto recorded = std::exchange(client_.output(), {});
  EXPECT_TRUE(read_in_pieces(server_, recorded, 1000) == bytes);
  const Error again = error_of([&] { read_in_pieces(server_, recorded, 1000); });
  EXPECT_EQ(again.kind(), ErrorKind::kProtocol);
  EXPECT_TRUE(contains(again, "changed on the way")) << again.what();
}

TEST_F(Sessions, GiveOutWhatCameBeforeAFault) {
  fuzz::complete_handshake(client_, server_);
  const auto bytes = random_bytes(500, 2);
  EXPECT_EQ(client_.write(bytes), bytes.size());
  auto& wire = client_.output();
  wire.insert(wire.end(), 100, std::byte{0x17});
  ByteVector buffer(2000);
  server_.give(wire);
  EXPECT_EQ(server_.read(buffer), bytes.size());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { server_.read(buffer); }).kind(), ErrorKind::kProtocol) << "and ever after";
  }
}

TEST_F(Sessions, DifferEachTime) {
  static_cast<void>(client_.handshake());
  TlsSession other(key_of(1), TlsRole::kClient, "the server", "");
  static_cast<void>(other.handshake());
  EXPECT_NE(client_.output(), other.output());
}

TEST_F(Sessions, AGoodbyeDuringTheHandshakeIsALostPeer) {
  static_cast<void>(client_.handshake());
  const ByteVector close_notify{std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                                std::byte{2},  std::byte{1}, std::byte{0}};
  client_.give(close_notify);
  const Error error = error_of([&] { client_.handshake(); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(error, "the other end at the server ended")) << error.what();
}

/// Bytes that genuine ends send: a seed for mutation. The first byte is the fuzz target's choice.
std::vector<ByteVector> seeds() {
  TlsSession client(transport::Credentials::of_key(ByteVector(32)), TlsRole::kClient, "the server", "");
  TlsSession server(transport::Credentials::of_key(ByteVector(32)), TlsRole::kServer, "the client", "");
  std::vector<ByteVector> all;
  const auto keep = [&](unsigned choice, const ByteVector& bytes) {
    all.push_back({static_cast<std::byte>(choice)});
    all.back().insert(all.back().end(), bytes.begin(), bytes.end());
  };
  static_cast<void>(client.handshake());
  const ByteVector hello = client.output();
  keep(252, hello);
  keep(16, hello);
  server.give(hello);
  static_cast<void>(server.handshake());
  keep(253, server.output());
  client.give(server.output());
  static_cast<void>(client.handshake());
  static_cast<void>(client.write(ByteVector(300)));
  keep(254, client.output());
  keep(255, client.output());
  return all;
}

/// Mutates the bytes after the first.
ByteVector mutated_record(ByteVector bytes, std::mt19937& random) {
  for (auto changes = 1 + random() % 4; changes != 0 && bytes.size() > 1; --changes) {
    const auto at = static_cast<std::ptrdiff_t>(1 + random() % (bytes.size() - 1));
    switch (random() % 4) {
      case 0: bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1U << random() % 8); break;
      case 1: bytes.erase(bytes.begin() + at); break;
      case 2: bytes.insert(bytes.begin() + at, 1 + random() % 20, static_cast<std::byte>(random())); break;
      default: bytes.resize(static_cast<std::size_t>(at)); break;
    }
  }
  return bytes;
}

TEST(MutatedBytes, TlsSession) {
  std::mt19937 random(20250311);
  const auto genuine = seeds();
  for (const auto& seed : genuine) fuzz::tls(seed);
  for (int i = 0; i < 1500; ++i) fuzz::tls(mutated_record(genuine[random() % genuine.size()], random));
  for (int i = 0; i < 500; ++i) fuzz::tls(random_bytes(random() % 300, static_cast<std::uint32_t>(i)));
}

}  // namespace
}  // namespace atl::test
