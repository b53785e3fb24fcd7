// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/core/error.h"
#include "tests/fuzz/ucx_agreement_target.h"

namespace atl::transport::ucx {
namespace {

using Bytes = std::vector<std::byte>;

Bytes address(std::size_t bytes = 200) { return Bytes(bytes, std::byte{7}); }

/// Moves what each end sends to the other, `piece` bytes at a time, until nothing moves.
void talk(Agreement& a, Agreement& b, std::size_t piece = 100000) {
  Bytes to_a;
  Bytes to_b;
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [from, to, waiting] : {std::tuple(&a, &b, &to_b), std::tuple(&b, &a, &to_a)}) {
      const Bytes said = from->take_output();
      waiting->insert(waiting->end(), said.begin(), said.end());
      const std::size_t count = std::min({piece, waiting->size(), to->wanted()});
      if (count == 0) continue;
      to->receive(std::span(*waiting).first(count));
      waiting->erase(waiting->begin(), waiting->begin() + static_cast<std::ptrdiff_t>(count));
      moved = true;
    }
  }
  EXPECT_TRUE(to_a.empty() && to_b.empty()) << "bytes were sent that the other end does not expect";
}

TEST(UcxAgreement, TwoProbesMakeAYes) {
  for (const std::size_t piece : {1U, 7U, 100000U}) {
    Agreement a(1, address(), "");
    Agreement b(2, address(1), "");
    EXPECT_FALSE(a.is_probing());
    talk(a, b, piece);
    ASSERT_TRUE(a.is_probing() && b.is_probing());
    EXPECT_FALSE(a.is_done());
    EXPECT_EQ(a.peer_address().size(), 1U);
    EXPECT_EQ(a.peer_secret(), 2U);
    EXPECT_EQ(b.peer_secret(), 1U);
    a.vote("");
    talk(a, b, piece);
    EXPECT_FALSE(a.is_done() || b.is_done());
    b.vote("");
    talk(a, b, piece);
    EXPECT_TRUE(a.agreed() && b.agreed());
    EXPECT_EQ(a.wanted(), 0U);
    EXPECT_EQ(b.wanted(), 0U);
  }
}

TEST(UcxAgreement, OneWithoutUcxMakesANoAndNoVote) {
  Agreement a(1, {}, "it is not installed");
  Agreement b(2, address(), "");
  talk(a, b);
  ASSERT_TRUE(a.is_done() && b.is_done());
  EXPECT_FALSE(a.agreed() || b.agreed());
  EXPECT_FALSE(a.is_probing() || b.is_probing());
  EXPECT_EQ(a.objection(), "this end: it is not installed");
  EXPECT_EQ(b.objection(), "the other end: it is not installed");
  EXPECT_EQ(b.wanted(), 0U);
}

TEST(UcxAgreement, OneNoIsANoOnBothSides) {
  for (const bool other_first : {false, true}) {
    Agreement a(1, address(), "");
    Agreement b(2, address(), "");
    talk(a, b);
    if (other_first) b.vote("");
    talk(a, b);
    a.vote("no way\n there");
    if (!other_first) b.vote("");
    talk(a, b);
    ASSERT_TRUE(a.is_done() && b.is_done());
    EXPECT_FALSE(a.agreed() || b.agreed());
    EXPECT_EQ(b.objection(), "the other end: no way? there");
  }
}

TEST(UcxAgreement, AnAddressThatIsTooLongIsNotOffered) {
  Agreement a(1, address(std::size_t{65} << 10), "");
  Agreement b(2, address(), "");
  talk(a, b);
  EXPECT_TRUE(a.is_done() && b.is_done());
  EXPECT_NE(b.objection().find("too long"), std::string::npos) << b.objection();
}

TEST(UcxAgreement, LongObjectionsAreCut) {
  Agreement a(1, {}, std::string(100'000, 'x'));
  Agreement b(2, address(), "");
  talk(a, b);
  EXPECT_TRUE(b.is_done());
  EXPECT_LT(b.objection().size(), 1000U);
}

TEST(UcxAgreement, EveryWrongByteOfAPrefixIsAProtocolError) {
  Agreement other(2, address(), "");
  const Bytes right = other.take_output();
  for (std::size_t at = 0; at < 16; ++at) {
    Bytes wrong = right;
    wrong[at] ^= std::byte{0x40};
    if (at == 8 || at == 9) continue;  // an address of another length
    Agreement a(1, address(), "");
    EXPECT_THROW(
        for (std::size_t used = 0; used < wrong.size() && a.wanted() != 0;) {
          const std::size_t count = std::min(a.wanted(), wrong.size() - used);
          a.receive(std::span(wrong).subspan(used, count));
          used += count;
        },
        Error)
        << "byte " << at;
  }
}

// The fuzz target with a fixed number of mutated conversations: crashes and broken promises abort the test.
TEST(UcxAgreement, SurvivesMutatedBytes) {
  Agreement other(2, address(), "");
  other.vote("");
  Bytes said = other.take_output();
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    Bytes mutated{static_cast<std::byte>(random() % 256)};
    mutated.insert(mutated.end(), said.begin(), said.end());
    for (unsigned changes = random() % 4; changes != 0; --changes) {
      mutated[random() % mutated.size()] = static_cast<std::byte>(random() % 256);
    }
    mutated.resize(1 + random() % mutated.size());
    fuzz::ucx_agreement(mutated);
  }
}

TEST(UcxAgreement, AnOfferWithoutAddressIsAProtocolError) {
  Agreement honest(2, {}, "");
  Bytes offer = honest.take_output();
  offer[5] = std::byte{1};  // says yes all the same
  offer.resize(16 + 8);
  const std::uint32_t body = 8;
  std::memcpy(offer.data() + 8, &body, sizeof body);
  Agreement a(1, address(), "");
  a.receive(std::span(offer).first(16));
  EXPECT_THROW(a.receive(std::span(offer).subspan(16)), Error);
}

}  // namespace
}  // namespace atl::transport::ucx
