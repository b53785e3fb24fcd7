// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace atl::transport {
namespace {

using Bytes = std::vector<std::byte>;
using State = Handshake::State;

/// One end's identity, which outlives its handshakes.
struct End {
  std::string job = "job";
  std::uint32_t attempt = 3;
  PeerAddress self;
  Bytes key = Bytes(32, std::byte{7});
  LinkKind kind = LinkKind::kTcp;

  explicit End(std::uint8_t number) {
    self.id.bytes.fill(number);
    self.name = "rank " + std::to_string(number);
    self.tcp = {"127.0.0.1:4711"};
  }
  HandshakeIdentity identity() const { return {job, attempt, self, key, kind}; }
};

/// Gives `bytes` to `to`, at most `step` at a time; returns what it throws.
std::optional<Error> feed(Handshake& to, const Bytes& bytes, std::size_t step = 1 << 20) {
  try {
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min({step, bytes.size() - at, to.wanted()});
      if (count == 0) return Error(ErrorKind::kInternal, "it does not want all bytes");
      to.receive(std::span(bytes).subspan(at, count));
      at += count;
    }
  } catch (const Error& error) {
    return error;
  }
  return {};
}

struct Outcome {
  std::optional<Error> acceptor;
  std::optional<Error> initiator;
  Refusal seen = Refusal::kNone;
};

/// Runs a handshake up to its first error.
Outcome run(const End& a, const End& b, const PeerId& target) {
  Outcome outcome;
  auto initiator = Handshake::initiator(a.identity(), target);
  auto acceptor = Handshake::acceptor(b.identity());
  for (int round = 0; round < 2 && !outcome.acceptor && !outcome.initiator; ++round) {
    outcome.acceptor = feed(acceptor, initiator.take_output());
    if (acceptor.state() == State::kProven) acceptor.welcome();
    outcome.initiator = feed(initiator, acceptor.take_output());
  }
  outcome.seen = initiator.refusal();
  if (!outcome.acceptor && !outcome.initiator) {
    EXPECT_EQ(initiator.state(), State::kDone);
    EXPECT_EQ(acceptor.state(), State::kDone);
    EXPECT_EQ(acceptor.peer().name, a.self.name);
    EXPECT_EQ(initiator.peer().name, b.self.name);
  }
  return outcome;
}

void expect_refused(const Outcome& outcome, Refusal reason, const std::string& part) {
  ASSERT_TRUE(outcome.acceptor);
  ASSERT_TRUE(outcome.initiator);
  EXPECT_EQ(outcome.acceptor->kind(), ErrorKind::kRefused);
  EXPECT_EQ(outcome.initiator->kind(), ErrorKind::kRefused);
  EXPECT_EQ(outcome.seen, reason);
  EXPECT_NE(std::string(outcome.initiator->what()).find(part), std::string::npos) << outcome.initiator->what();
}

TEST(Handshake, TwoEndsOfOneJobAgree) {
  const End a(1), b(2);
  const Outcome outcome = run(a, b, b.self.id);
  EXPECT_FALSE(outcome.acceptor);
  EXPECT_FALSE(outcome.initiator);
}

// Proves T-7.
TEST(Handshake, EveryDifferenceIsRefusedByName) {
  const End a(1);
  End b(2);
  b.key[31] ^= std::byte{1};
  expect_refused(run(a, b, b.self.id), Refusal::kKey, "key");
  b = End(2);
  b.job = "another";
  expect_refused(run(a, b, b.self.id), Refusal::kJob, "another job");
  b = End(2);
  b.attempt = 4;
  expect_refused(run(a, b, b.self.id), Refusal::kAttempt, "it is at attempt 4, this rank at 3");
  b = End(2);
  b.kind = LinkKind::kShm;
  expect_refused(run(a, b, b.self.id), Refusal::kTransport, "transport");
  b = End(2);
  expect_refused(run(a, b, End(9).self.id), Refusal::kPeer, "another process");
}

TEST(Handshake, BothEndsKnowTheRail) {
  const End a(1);
  End b(2);
  HandshakeIdentity joining = a.identity();
  joining.rail = 3;
  auto initiator = Handshake::initiator(joining, b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  EXPECT_FALSE(feed(acceptor, initiator.take_output()));
  EXPECT_FALSE(feed(initiator, acceptor.take_output()));
  EXPECT_FALSE(feed(acceptor, initiator.take_output()));
  ASSERT_EQ(acceptor.state(), State::kProven);
  EXPECT_EQ(acceptor.rail(), 3);
  EXPECT_EQ(initiator.rail(), 3);
  joining.rail = 200;
  auto impossible = Handshake::initiator(joining, b.self.id);
  auto careful = Handshake::acceptor(b.identity());
  const auto error = feed(careful, impossible.take_output());
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("rail 200"), std::string::npos) << error->what();
}

TEST(Handshake, AnotherWireVersionIsNamedOnBothSides) {
  const End a(1), b(2);
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  Bytes hello = initiator.take_output();
  hello[4] = std::byte{99};
  const auto error = feed(acceptor, hello);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kRefused);
  EXPECT_NE(std::string(error->what()).find("wire version 99 instead of 2"), std::string::npos) << error->what();
  const auto seen = feed(initiator, acceptor.take_output());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->kind(), ErrorKind::kRefused);
  EXPECT_EQ(initiator.refusal(), Refusal::kVersion);
}

TEST(Handshake, AnyCutOfTheStreamGivesTheSame) {
  const End a(1), b(2);
  for (const std::size_t step : {1U, 2U, 3U, 7U, 11U, 12U, 13U, 64U}) {
    auto initiator = Handshake::initiator(a.identity(), b.self.id);
    auto acceptor = Handshake::acceptor(b.identity());
    EXPECT_FALSE(feed(acceptor, initiator.take_output(), step));
    EXPECT_FALSE(feed(initiator, acceptor.take_output(), step));
    EXPECT_FALSE(feed(acceptor, initiator.take_output(), step));
    ASSERT_EQ(acceptor.state(), State::kProven) << step;
    EXPECT_EQ(acceptor.wanted(), 0U);
    acceptor.welcome();
    EXPECT_FALSE(feed(initiator, acceptor.take_output(), step));
    EXPECT_EQ(initiator.state(), State::kDone) << step;
    EXPECT_EQ(initiator.wanted(), 0U) << "the link's own bytes follow";
  }
}

/// Runs a handshake in which one bit of message number `message` (0 to 3) is flipped. Returns whether both ends
/// completed it.
bool agree_despite_flip(const End& a, const End& b, int message, std::size_t bit) {
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  for (int i = 0; i < 4; ++i) {
    Handshake& from = i % 2 == 0 ? initiator : acceptor;
    Handshake& to = i % 2 == 0 ? acceptor : initiator;
    if (from.state() == State::kProven) from.welcome();
    Bytes bytes = from.take_output();
    if (i == message) bytes[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
    if (feed(to, bytes)) return false;
  }
  return initiator.state() == State::kDone && acceptor.state() == State::kDone;
}

TEST(Handshake, AFlippedBitAnywhereIsNoticed) {
  const End a(1), b(2);
  ASSERT_TRUE(agree_despite_flip(a, b, -1, 0));
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  std::vector<std::size_t> lengths;
  Bytes bytes = initiator.take_output();
  lengths.push_back(bytes.size());
  feed(acceptor, bytes);
  bytes = acceptor.take_output();
  lengths.push_back(bytes.size());
  feed(initiator, bytes);
  lengths.push_back(initiator.take_output().size());
  lengths.push_back(lengths.back());
  for (int message = 0; message < 4; ++message) {
    for (std::size_t bit = 0; bit < 8 * lengths[static_cast<std::size_t>(message)]; ++bit) {
      EXPECT_FALSE(agree_despite_flip(a, b, message, bit)) << "message " << message << " bit " << bit;
    }
  }
}

// Proves T-7.
TEST(Handshake, ARecordedConversationCannotBeReplayed) {
  const End a(1), b(2);
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  const Bytes hello = initiator.take_output();
  feed(acceptor, hello);
  const Bytes challenge = acceptor.take_output();
  feed(initiator, challenge);
  const Bytes proof = initiator.take_output();
  feed(acceptor, proof);
  acceptor.welcome();
  const Bytes welcome = acceptor.take_output();

  auto second = Handshake::acceptor(b.identity());
  EXPECT_FALSE(feed(second, hello));
  const auto refused = feed(second, proof);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind(), ErrorKind::kRefused);

  auto caller = Handshake::initiator(a.identity(), b.self.id);
  caller.take_output();
  EXPECT_FALSE(feed(caller, challenge));
  const auto fooled = feed(caller, welcome);
  ASSERT_TRUE(fooled);
  EXPECT_EQ(fooled->kind(), ErrorKind::kRefused);
}

TEST(Handshake, AProofCannotBeReflected) {
  const End a(1), b(2);
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  auto acceptor = Handshake::acceptor(b.identity());
  feed(acceptor, initiator.take_output());
  feed(initiator, acceptor.take_output());
  Bytes proof = initiator.take_output();
  proof[6] = std::byte{4};  // its own proof, called a welcome
  const auto error = feed(initiator, proof);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kRefused);
}

TEST(Handshake, LongAndForeignMessagesEndAtTheHeader) {
  const End b(2);
  auto acceptor = Handshake::acceptor(b.identity());
  const std::string garbage = "GET / HTTP/1.1\r\n\r\n";
  const auto span = std::as_bytes(std::span(garbage));
  const auto foreign = feed(acceptor, Bytes(span.begin(), span.end()));
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->kind(), ErrorKind::kProtocol);
  EXPECT_TRUE(acceptor.take_output().empty()) << "a foreign client gets no answer";

  const End a(1);
  auto initiator = Handshake::initiator(a.identity(), b.self.id);
  Bytes hello = initiator.take_output();
  hello[9] = std::byte{0x11};  // 0x11xx bytes announced
  auto second = Handshake::acceptor(b.identity());
  const auto error = feed(second, Bytes(hello.begin(), hello.begin() + 12));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kProtocol);
}

}  // namespace
}  // namespace atl::transport
