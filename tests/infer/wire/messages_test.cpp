// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "atoll/infer/graph_json.h"
#include "atoll/infer/wire/messages_generated.h"
#include "tests/fuzz/wire_target.h"
#include "tests/infer/wire/cases.h"

namespace atl::infer::wire {
namespace {

using test::ByteVector;
using test::Dice;
using test::every_message;
using test::failure;

// The error of decode; empty if the bytes are a message.
std::string refused(std::span<const std::byte> bytes) {
  return failure(ErrorKind::kProtocol, [&] { static_cast<void>(decode(bytes)); });
}

// The error of encode for the message of type T after a change.
template <class T, class Change>
std::string changed(const Change& change) {
  for (Message message : every_message()) {
    if (T* found = std::get_if<T>(&message)) {
      change(*found);
      return failure(ErrorKind::kInvalidArgument, [&] { static_cast<void>(encode(message)); });
    }
  }
  return "no message has this type";
}

// Bytes of an envelope around what `make` puts into a builder.
template <class Make>
ByteVector built(fbs::Body kind, const Make& make) {
  flatbuffers::FlatBufferBuilder builder;
  const flatbuffers::Offset<void> body = make(builder).Union();
  fbs::FinishEnvelopeBuffer(builder, fbs::CreateEnvelope(builder, kind, body));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

TEST(WireMessages, ComeOutAsTheyWentIn) {
  const std::vector<Message> messages = every_message();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].index(), i);
    const ByteVector bytes = encode(messages[i]);
    EXPECT_EQ(decode(bytes), messages[i]) << name_of(messages[i]);
    EXPECT_EQ(refused(bytes), "");
  }
}

TEST(WireMessages, EmptyFieldsComeOutEmpty) {
  for (const Message& message :
       {Message(Hello{}), Message(Welcome{}), Message(Open{.model = 1}), Message(Ready{.model = 1}),
        Message(Divide{.model = 1}), Message(Failed{}), Message(Draining{}), Message(Ack{})}) {
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
  }
}

TEST(WireMessages, NamesAreThoseOfTheTypes) {
  EXPECT_STREQ(name_of(Hello{}), "Hello");
  EXPECT_STREQ(name_of(Divide{}), "Divide");
  EXPECT_STREQ(name_of(Draining{}), "Draining");
  EXPECT_STREQ(name_of(Bye{}), "Bye");
}

TEST(WireMessages, MayLieAnywhere) {
  for (const Message& message : every_message()) {
    const ByteVector bytes = encode(message);
    for (std::size_t offset = 0; offset < 8; ++offset) {
      ByteVector moved(offset);
      moved.insert(moved.end(), bytes.begin(), bytes.end());
      EXPECT_EQ(decode(std::span(moved).subspan(offset)), message);
    }
  }
}

TEST(WireMessages, LargestGraphAndLongestDivision) {
  const Message graph = GraphText{1, std::string(kMaxGraphBytes, 'x')};
  EXPECT_EQ(decode(encode(graph)), graph);
  EXPECT_LE(encode(graph).size(), kMaxControlBytes);
  Divide divide{.model = 1};
  divide.plan.shares.resize(kMaxTensors, {{0, kIntegerBound - 1}, {0, 0}});
  const Message message = divide;
  EXPECT_EQ(decode(encode(message)), message);
}

TEST(WireMessages, PrefixesAreRefusedOrMeanNothingElse) {
  for (const Message& message : every_message()) {
    const ByteVector bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto prefix = std::span<const std::byte>(bytes).first(length);
      // FlatBuffers ends some messages with padding, without which they are the same.
      if (refused(prefix).empty()) {
        EXPECT_EQ(decode(prefix), message) << name_of(message) << " " << length;
      }
    }
    EXPECT_NE(refused(std::span<const std::byte>(bytes).first(bytes.size() / 2)), "") << name_of(message);
  }
}

TEST(WireMessages, WhatIsNoMessageIsRefused) {
  EXPECT_NE(refused({}), "");
  for (const std::size_t size : {1U, 4U, 8U, 15U, 16U, 64U, 4096U}) {
    EXPECT_NE(refused(ByteVector(size)), "");
    EXPECT_NE(refused(ByteVector(size, std::byte{0xff})), "");
  }
  EXPECT_NE(refused(ByteVector(kMaxControlBytes + 1)), "");
  ByteVector other = encode(Ping{1});
  std::memcpy(other.data() + 4, "ATLX", 4);
  EXPECT_NE(refused(other), "");
}

TEST(WireMessages, BodiesThatAreAbsentOrUnknownAreRefused) {
  const auto close = [](auto& builder) { return fbs::CreateClose(builder, 1); };
  EXPECT_EQ(refused(built(fbs::Body::Close, close)), "");
  EXPECT_NE(refused(built(fbs::Body::NONE, close)).find("unknown kind 0"), std::string::npos);
  EXPECT_NE(refused(built(static_cast<fbs::Body>(23), close)).find("unknown kind 23"), std::string::npos);
  EXPECT_NE(refused(built(static_cast<fbs::Body>(255), close)).find("unknown kind 255"), std::string::npos);
  // A table of another kind: its strings are not there.
  EXPECT_NE(refused(built(fbs::Body::Hello, close)), "");
  flatbuffers::FlatBufferBuilder builder;
  fbs::FinishEnvelopeBuffer(builder, fbs::CreateEnvelope(builder, fbs::Body::Bye));
  const std::span bytes(reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize());
  EXPECT_NE(refused(bytes).find("without a body"), std::string::npos);
}

TEST(WireMessages, EncodeRefusesFieldsOutOfBounds) {
  const std::string label(kMaxLabelBytes + 1, 'x');
  EXPECT_NE(changed<Hello>([&](Hello& m) { m.software = label; }).find("Hello has software of 257 bytes"),
            std::string::npos);
  EXPECT_NE(changed<Hello>([&](Hello& m) { m.name = label; }), "");
  EXPECT_NE(changed<Welcome>([&](Welcome& m) { m.software = label; }), "");
  EXPECT_NE(changed<Welcome>([&](Welcome& m) { m.device = label; }), "");
  EXPECT_NE(changed<Ready>([&](Ready& m) { m.device = label; }), "");
  EXPECT_NE(changed<Open>([](Open& m) { m.graph_bytes = kMaxGraphBytes + 1; }), "");
  EXPECT_NE(changed<Open>([](Open& m) { m.weight_bytes = kMaxWeightBytes + 1; }), "");
  EXPECT_NE(changed<Need>([](Need& m) { m.weights_from = kMaxWeightBytes + 1; }), "");
  EXPECT_NE(changed<GraphText>([](GraphText& m) { m.text.assign(kMaxGraphBytes + 1, 'x'); }), "");
  EXPECT_NE(changed<wire::Run>([](wire::Run& m) { m.budget_us = kMaxMicroseconds + 1; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.compute_us = kMaxMicroseconds + 1; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.waited_us = kMaxMicroseconds + 1; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.received_us = kMaxMicroseconds + 1; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.load.computing = m.load.turns + 0.5; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.load.turns = 0; }), "") << "no turns, but some load";
  EXPECT_EQ(changed<Done>([](Done& m) { m.load = {}; }), "");
  EXPECT_NE(changed<Pong>([](Pong& m) { m.load.turns = kMaxTurns + 1; }), "");
  EXPECT_NE(changed<Pong>([](Pong& m) { m.load.waiting = kMaxWaiting + 1.0; }), "");
  EXPECT_NE(changed<Pong>([](Pong& m) { m.load.turn_us = kMaxMicroseconds + 1; }), "");
  for (const double mean : {-1e-9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_NE(changed<Done>([&](Done& m) { m.load.waiting = mean; }), "");
    EXPECT_NE(changed<Pong>([&](Pong& m) { m.load.computing = mean; }), "");
  }
  EXPECT_NE(changed<Ack>([](Ack& m) { m.tensor = -1; }), "");
  EXPECT_NE(changed<Ack>([](Ack& m) { m.tensor = static_cast<std::int32_t>(kMaxTensors); }), "");
  EXPECT_NE(changed<Ack>([](Ack& m) { m.rows_begin = -1; }), "");
  EXPECT_NE(changed<Ack>([](Ack& m) { m.bytes = std::uint64_t{1} << 32; }), "");
  EXPECT_NE(changed<Ack>([](Ack& m) { m.first_bytes = m.bytes + 1; }), "");
  EXPECT_NE(changed<Ack>([](Ack& m) { m.elapsed_us = UINT64_MAX; }), "");
  EXPECT_EQ(changed<Ack>([](Ack& m) { m.inference = 0; }), "") << "a probe's";
  EXPECT_NE(changed<Failed>([](Failed& m) { m.kind = static_cast<ErrorKind>(10); }), "");
}

TEST(WireMessages, NumbersOfModelsAndInferencesAreNotZero) {
  const auto without_model = [](auto type) {
    using T = decltype(type);
    return changed<T>([](T& m) { m.model = 0; });
  };
  for (const std::string& text : {without_model(Open{}), without_model(Need{}), without_model(GraphText{}),
                                  without_model(Queued{}), without_model(Ready{}), without_model(Divide{}),
                                  without_model(Divided{}), without_model(wire::Run{}), without_model(Close{})}) {
    EXPECT_NE(text.find("has model 0"), std::string::npos) << text;
  }
  EXPECT_NE(changed<wire::Run>([](wire::Run& m) { m.inference = 0; }), "");
  EXPECT_NE(changed<Done>([](Done& m) { m.inference = 0; }), "");
  EXPECT_NE(changed<Cancel>([](Cancel& m) { m.inference = 0; }), "");
  EXPECT_EQ(changed<Failed>([](Failed& m) { m.model = m.inference = 0; }), "") << "the connection";
}

TEST(WireMessages, EncodeRefusesDivisionsAndProfilesOutOfBounds) {
  for (const Region rows : {Region{-1, 3}, Region{3, 2}, Region{0, kIntegerBound}, Region{INT64_MIN, INT64_MAX}}) {
    EXPECT_NE(changed<Divide>([&](Divide& m) { m.plan.shares[0].robot = rows; }), "");
    EXPECT_NE(changed<Divide>([&](Divide& m) { m.plan.shares[1].server = rows; }), "");
  }
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.shares.resize(kMaxTensors + 1); }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.chunks = 0; }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.chunks = static_cast<int>(kMaxChunks) + 1; }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.answer_codec = Codec::kJpeg; }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.input_tensor = -2; }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.input_tensor = static_cast<std::int32_t>(kMaxTensors); }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.dim = static_cast<std::int32_t>(kMaxDims); }), "");
  EXPECT_NE(changed<Divide>([](Divide& m) { m.plan.dim = -1; }), "");
  EXPECT_EQ(changed<Divide>([](Divide& m) { m.plan.dim = m.plan.input_tensor = -1; }), "");
  EXPECT_NE(changed<Ready>([](Ready& m) { m.input_tensor = -1; }), "");
  EXPECT_NE(changed<Ready>([](Ready& m) { m.fixed.pop_back(); }), "");
  EXPECT_NE(changed<Ready>([](Ready& m) { m.per_row.push_back(0); }), "");
  EXPECT_NE(changed<Ready>([](Ready& m) { m.fixed = m.per_row = m.whole = std::vector<double>(kMaxNodes + 1); }), "");
  for (const double time : {-1e-9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_NE(changed<Ready>([&](Ready& m) { m.fixed[1] = time; }), "");
    EXPECT_NE(changed<Ready>([&](Ready& m) { m.per_row[1] = time; }), "");
    EXPECT_NE(changed<Ready>([&](Ready& m) { m.whole[2] = time; }), "");
  }
}

// The bounds are the same for incoming messages; these are made without encode.
TEST(WireMessages, DecodeRefusesFieldsOutOfBounds) {
  const std::string label(kMaxLabelBytes + 1, 'x');
  const std::string note(kMaxNoteBytes + 1, 'x');
  const auto says = [](const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << "\"" << text << "\" lacks \"" << words << "\"";
  };
  says(refused(built(fbs::Body::Hello, [&](auto& b) { return fbs::CreateHelloDirect(b, label.c_str(), ""); })),
       "the message Hello has software of 257 bytes; allowed: at most 256");
  says(refused(built(fbs::Body::Welcome,
                     [&](auto& b) { return fbs::CreateWelcomeDirect(b, "", "", 0, 0, 0, note.c_str()); })),
       "the message Welcome has note of 4097 bytes");
  says(refused(built(fbs::Body::Queued, [&](auto& b) { return fbs::CreateQueuedDirect(b, 1, 0, note.c_str()); })),
       "Queued has why");
  says(refused(built(fbs::Body::Draining, [&](auto& b) { return fbs::CreateDrainingDirect(b, note.c_str()); })),
       "Draining has text");
  says(refused(built(fbs::Body::Failed, [&](auto& b) { return fbs::CreateFailedDirect(b, 1, 1, 1, note.c_str()); })),
       "Failed has text");
  says(refused(built(fbs::Body::Failed, [](auto& b) { return fbs::CreateFailedDirect(b, 1, 1, 10, ""); })),
       "Failed has kind 10");
  says(refused(built(fbs::Body::Close, [](auto& b) { return fbs::CreateClose(b, 0); })), "Close has model 0");
  for (const std::size_t size : {0U, 31U, 33U}) {
    const std::vector<std::uint8_t> hash(size);
    says(refused(built(fbs::Body::Open, [&](auto& b) { return fbs::CreateOpenDirect(b, 1, &hash, 0, 0); })),
         "Open has hash of " + std::to_string(size) + " bytes; allowed: 32");
  }
  for (const std::size_t size : {0U, 15U, 17U}) {
    const std::vector<std::uint8_t> some(size);
    const std::vector<std::uint8_t> right(16);
    says(refused(built(fbs::Body::Offer, [&](auto& b) { return fbs::CreateOfferDirect(b, 1, &some, &right); })),
         "Offer has door of " + std::to_string(size) + " bytes; allowed: 16");
    says(refused(built(fbs::Body::Offer, [&](auto& b) { return fbs::CreateOfferDirect(b, 1, &right, &some); })),
         "Offer has ticket of " + std::to_string(size) + " bytes; allowed: 16");
  }
  const std::vector<double> nan{std::nan("")};
  says(refused(built(fbs::Body::Ready,
                     [&](auto& b) { return fbs::CreateReadyDirect(b, 1, "", &nan, &nan, &nan, -1, -1); })),
       "Ready has fixed nan");
  const double huge = std::numeric_limits<double>::infinity();
  says(refused(built(fbs::Body::Pong, [&](auto& b) { return fbs::CreatePong(b, 1, 1, 0.5, huge, 1); })),
       "Pong has waiting inf");
  says(refused(built(fbs::Body::Pong, [&](auto& b) { return fbs::CreatePong(b, 1, 1, nan[0], 0, 1); })),
       "Pong has computing nan");
  says(refused(built(fbs::Body::Done, [](auto& b) { return fbs::CreateDone(b, 1, 0, 0, 0, 2, 2.5, 0, 0); })),
       "Done has computing 2.5");
  says(refused(built(fbs::Body::Done, [](auto& b) { return fbs::CreateDone(b, 1, 0, 0, 0, 0, 0, 1, 0); })),
       "Done has waiting 1");
  const std::vector<fbs::Share> shares{{0, 1, 5, 4}};
  says(refused(
           built(fbs::Body::Divide, [&](auto& b) { return fbs::CreateDivideDirect(b, 1, 1, -1, -1, &shares, 1, 0); })),
       "Divide has shares of [5, 4)");
  const std::vector<fbs::Share> none;
  says(
      refused(built(fbs::Body::Divide, [&](auto& b) { return fbs::CreateDivideDirect(b, 1, 1, -1, -1, &none, 1, 7); })),
      "Divide has answer_codec 7");
  const std::string text(kMaxGraphBytes + 1, 'x');
  says(refused(built(fbs::Body::GraphText, [&](auto& b) { return fbs::CreateGraphTextDirect(b, 1, text.c_str()); })),
       "GraphText has text");
}

// As servers of earlier releases send them.
TEST(WireMessages, WhatIsNotToldOfTheLoadIsNothing) {
  const auto done = built(fbs::Body::Done, [](auto& b) { return fbs::CreateDone(b, 5, 1, 2, 3); });
  EXPECT_EQ(decode(done), Message(Done{5, 1, 2, 3, {}}));
  const auto pong = built(fbs::Body::Pong, [](auto& b) { return fbs::CreatePong(b, 7); });
  EXPECT_EQ(decode(pong), Message(Pong{7, {}}));
}

TEST(WireMessages, RequiredTextsThatAreAbsentAreRefused) {
  // Tables put together by hand: CreateHello would not leave out a text.
  const auto empty = [](auto& builder) {
    const auto begin = builder.StartTable();
    return flatbuffers::Offset<void>(builder.EndTable(begin));
  };
  int refusals = 0;
  for (int kind = 1; kind <= 19; ++kind) {
    flatbuffers::FlatBufferBuilder builder;
    const flatbuffers::Offset<void> body = empty(builder);
    fbs::FinishEnvelopeBuffer(builder, fbs::CreateEnvelope(builder, static_cast<fbs::Body>(kind), body));
    const std::span bytes(reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize());
    if (!refused(bytes).empty()) ++refusals;
  }
  // Ack, Ping, Pong and Bye are good without any field.
  EXPECT_EQ(refusals, 15);
}

TEST(WireMessages, HugeCountsAreRefused) {
  const ByteVector good = encode(Ready{1, "cpu", {1}, {1}, {1}, -1, -1});
  int tried = 0;
  for (std::size_t at = 0; at + 4 <= good.size(); at += 4) {
    for (const std::uint32_t count : {0x7fffffffU, 0xffffffffU, 0x20000001U, 0x10000000U}) {
      ByteVector bytes = good;
      std::memcpy(bytes.data() + at, &count, 4);
      fuzz::wire_messages(bytes);
      ++tried;
    }
  }
  EXPECT_GT(tried, 80);
}

TEST(WireMessages, OffsetsThatGoRoundAreRefused) {
  // Every offset of a message in turn points to every other place.
  const ByteVector good = encode(Welcome{"a", "b", 1, 2, 3, "c"});
  for (std::size_t at = 0; at + 4 <= good.size(); at += 2) {
    for (std::uint32_t to = 0; to < good.size() + 8; to += 2) {
      ByteVector bytes = good;
      const auto offset = static_cast<std::uint32_t>(to - at);
      std::memcpy(bytes.data() + at, &offset, 4);
      fuzz::wire_messages(bytes);
    }
  }
}

TEST(WireMessages, SentencesAreCutAtWholeCharacters) {
  Failed failed{1, 2, ErrorKind::kTimeout, std::string(kMaxNoteBytes - 1, 'x') + "äöü"};
  const auto cut = std::get<Failed>(decode(encode(failed)));
  EXPECT_EQ(cut.text, std::string(kMaxNoteBytes - 1, 'x'));
  failed.text = std::string(kMaxNoteBytes - 2, 'x') + "äö";
  EXPECT_EQ(std::get<Failed>(decode(encode(failed))).text, std::string(kMaxNoteBytes - 2, 'x') + "ä");
  const std::string longer(3 * kMaxNoteBytes, 'n');
  EXPECT_EQ(std::get<Welcome>(decode(encode(Welcome{"", "", 0, 0, 0, longer}))).note.size(), kMaxNoteBytes);
  EXPECT_EQ(std::get<Queued>(decode(encode(Queued{1, 0, longer}))).why.size(), kMaxNoteBytes);
  EXPECT_EQ(std::get<Draining>(decode(encode(Draining{longer}))).text.size(), kMaxNoteBytes);
  failed.text = std::string(3 * kMaxNoteBytes, '\x80');
  EXPECT_EQ(std::get<Failed>(decode(encode(failed))).text, "");
}

// The fuzz target on messages of which some bytes are changed: broken promises abort the test.
TEST(WireMessages, MutatedMessagesAreRefusedOrRead) {
  Dice dice(3);
  for (const Message& message : every_message()) {
    const ByteVector seed = encode(message);
    for (int i = 0; i < 500; ++i) fuzz::wire_messages(test::mutated(dice, seed));
  }
}

}  // namespace
}  // namespace atl::infer::wire
