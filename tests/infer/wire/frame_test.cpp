// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/fuzz/wire_target.h"
#include "tests/infer/wire/cases.h"

namespace atl::infer::wire {
namespace {

using test::ByteVector;
using test::Dice;
using test::failure;
using test::random_bytes;

struct Frame {
  FrameHeader header;
  ByteVector payload;
  bool operator==(const Frame&) const = default;
};

void append(ByteVector& stream, const Frame& frame) {
  const FrameBytes bytes = make_frame(frame.header, frame.payload);
  stream.insert(stream.end(), bytes->begin(), bytes->end());
}
ByteVector bytes_of_frames(const std::vector<Frame>& frames) {
  ByteVector stream;
  for (const Frame& frame : frames) append(stream, frame);
  return stream;
}

// One of every kind; sizes that are odd, and an empty one.
std::vector<Frame> every_kind() {
  Dice dice(1);
  return {
      {{.kind = FrameKind::kControl, .payload_bytes = 33}, random_bytes(dice, 33)},
      {{.kind = FrameKind::kWeights, .id = UINT64_MAX, .offset = kMaxWeightBytes - 7, .payload_bytes = 7},
       random_bytes(dice, 7)},
      {{.kind = FrameKind::kTensor, .id = 5, .tensor = INT32_MAX, .rows_begin = 3, .rows_end = 3}, {}},
      {{.kind = FrameKind::kTensor,
        .codec = Codec::kBitsZstd,
        .id = 5,
        .tensor = 1,
        .rows_begin = 0,
        .rows_end = INT32_MAX,
        .message_bytes = UINT32_MAX,
        .offset = UINT32_MAX - 1,
        .payload_bytes = 1},
       random_bytes(dice, 1)},
      {{.kind = FrameKind::kProbe, .id = 9, .message_bytes = 90, .offset = 20, .payload_bytes = 70},
       random_bytes(dice, 70)},
  };
}

class Receiver {
 public:
  explicit Receiver(std::size_t most_control_bytes = kMaxControlBytes) : parser(most_control_bytes) {}

  void push(std::span<const std::byte> bytes) {
    parser.push(bytes, [this](const ReceivedFrame& frame) {
      const auto payload = frame.payload;
      frames.push_back({frame.header, {payload.begin(), payload.end()}});
      raw.insert(raw.end(), frame.bytes.begin(), frame.bytes.end());
    });
  }
  std::string refusal(std::span<const std::byte> bytes) {
    try {
      push(bytes);
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kProtocol || error.kind() == ErrorKind::kMismatch) << error.what();
      return error.what();
    }
    return {};
  }

  FrameParser parser;
  std::vector<Frame> frames;
  ByteVector raw;  // the frames as they arrived
};

TEST(WireFrame, ComesOutAsItWentIn) {
  const std::vector<Frame> frames = every_kind();
  Receiver receiver;
  receiver.push(bytes_of_frames(frames));
  EXPECT_EQ(receiver.frames, frames);
  EXPECT_FALSE(receiver.parser.is_inside_frame());
  receiver.push({});
  EXPECT_EQ(receiver.frames.size(), frames.size());
}

TEST(WireFrame, HeaderIsAsDocumented) {
  const Frame frame{{.kind = FrameKind::kTensor,
                     .codec = Codec::kZstd,
                     .id = 0x1112131415161718,
                     .tensor = 0x21222324,
                     .rows_begin = 0x31323334,
                     .rows_end = 0x41424344,
                     .message_bytes = 0x51525354,
                     .offset = 0x0000000001626364,
                     .payload_bytes = 2},
                    {std::byte{7}, std::byte{8}}};
  const ByteVector stream = bytes_of_frames({frame});
  const std::vector<int> expected{'A',  'T',  'L',  'F',  1,    0,    3,    2,    0x18, 0x17, 0x16, 0x15, 0x14, 0x13,
                                  0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41,
                                  0x54, 0x53, 0x52, 0x51, 0x64, 0x63, 0x62, 0x01, 0,    0,    0,    0};
  ASSERT_EQ(stream.size(), 58U);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<int>(stream[i]), expected[i]) << i;
  EXPECT_EQ(stream[48], std::byte{2});
}

TEST(WireFrame, MayBeSplitAtEveryByte) {
  const std::vector<Frame> frames = every_kind();
  const ByteVector stream = bytes_of_frames(frames);
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    Receiver receiver;
    receiver.push(std::span(stream).first(cut));
    receiver.push(std::span(stream).subspan(cut));
    ASSERT_EQ(receiver.frames, frames) << cut;
    ASSERT_EQ(receiver.raw, stream) << cut;
  }
  for (const std::size_t piece : {1U, 2U, 3U, 55U, 56U, 57U}) {
    Receiver receiver;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      receiver.push(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
    }
    EXPECT_EQ(receiver.frames, frames) << piece;
  }
}

TEST(WireFrame, EveryPrefixGivesWhatIsComplete) {
  const std::vector<Frame> frames = every_kind();
  const ByteVector stream = bytes_of_frames(frames);
  for (std::size_t length = 0; length <= stream.size(); ++length) {
    std::size_t complete = 0;
    std::size_t end = 0;
    while (complete < frames.size() && end + kHeaderBytes + frames[complete].payload.size() <= length) {
      end += kHeaderBytes + frames[complete++].payload.size();
    }
    Receiver receiver;
    receiver.push(std::span(stream).first(length));
    ASSERT_EQ(receiver.frames.size(), complete) << length;
    ASSERT_EQ(receiver.parser.is_inside_frame(), length != end) << length;
  }
}

TEST(WireFrame, OneFlippedBitIsRefused) {
  for (const Frame& frame : every_kind()) {
    const ByteVector stream = bytes_of_frames({frame});
    for (std::size_t bit = 0; bit < 8 * stream.size(); ++bit) {
      ByteVector flipped = stream;
      flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      Receiver receiver;
      ASSERT_NE(receiver.refusal(flipped), "") << bit;
      ASSERT_TRUE(receiver.frames.empty()) << bit;
    }
  }
}

TEST(WireFrame, NothingComesBehindWhatWasWrong) {
  const std::vector<Frame> frames = every_kind();
  ByteVector stream = bytes_of_frames({frames[0], frames[1]});
  stream[kHeaderBytes + 33 + 1] ^= std::byte{1};
  Receiver receiver;
  EXPECT_NE(receiver.refusal(stream), "");
  EXPECT_EQ(receiver.frames, std::vector<Frame>{frames[0]});
  EXPECT_NE(receiver.refusal(bytes_of_frames({frames[0]})), "");
  EXPECT_EQ(receiver.frames.size(), 1U);
}

TEST(WireFrame, NothingComesBehindACallbackThatThrew) {
  const ByteVector stream = bytes_of_frames(every_kind());
  FrameParser parser;
  const auto thrower = [](const ReceivedFrame&) { throw std::runtime_error("no"); };
  EXPECT_THROW(parser.push(stream, thrower), std::runtime_error);
  EXPECT_THROW(parser.push(stream, [](const ReceivedFrame&) { FAIL(); }), Error);
}

TEST(WireFrame, FramesThatComeWholeAreNotCopied) {
  const ByteVector stream = bytes_of_frames(every_kind());
  FrameParser parser;
  std::size_t at = 0;
  parser.push(stream, [&](const ReceivedFrame& frame) {
    EXPECT_EQ(frame.bytes.data(), stream.data() + at);
    at += frame.bytes.size();
  });
  EXPECT_EQ(at, stream.size());
}

// Payloads of every second tensor frame are assembled elsewhere, however the stream is cut.
TEST(WireFrame, PayloadsAreAssembledWhereTheReceiverWants) {
  std::vector<Frame> frames = every_kind();
  Dice dice(2);
  for (std::uint32_t size = 1; size <= 6; ++size) {
    frames.push_back({{.kind = FrameKind::kTensor, .id = size, .message_bytes = 90 * size, .payload_bytes = 90 * size},
                      random_bytes(dice, 90 * size)});
  }
  const ByteVector stream = bytes_of_frames(frames);
  for (std::size_t piece = 1; piece <= 200; ++piece) {
    std::vector<Frame> found;
    std::shared_ptr<ByteVector> place;
    int placed = 0;
    FrameParser parser;
    parser.assemble_in([&](const FrameHeader& header) -> FrameParser::Place {
      if (header.kind != FrameKind::kTensor || header.id % 2 == 0) return {};
      place = std::make_shared<ByteVector>(header.payload_bytes);
      return {*place, place};
    });
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      parser.push(std::span(stream).subspan(at, std::min(piece, stream.size() - at)), [&](const ReceivedFrame& frame) {
        if (frame.bytes.empty()) {
          ++placed;
          EXPECT_EQ(frame.payload.data(), place->data());
        }
        found.push_back({frame.header, {frame.payload.begin(), frame.payload.end()}});
      });
    }
    ASSERT_EQ(found, frames) << piece;
    EXPECT_FALSE(parser.is_inside_frame());
    EXPECT_GE(placed, piece < 90 ? 3 : 0) << piece;
  }
}

TEST(WireFrame, ALentFrameSaysWhereItsBytesLie) {
  const FrameHeader header{
      .kind = FrameKind::kTensor, .id = 7, .tensor = 2, .rows_end = 3, .message_bytes = 900, .offset = 100};
  const auto found = [&](const LentPayload& lent, FrameHeader its) {
    LentPayload back;
    FrameParser().push(*make_frame(its, lent), [&](const ReceivedFrame& frame) {
      its.kind = FrameKind::kLent;
      its.payload_bytes = 12;
      EXPECT_EQ(frame.header, its);
      back = lent_by(frame);
    });
    return back;
  };
  const LentPayload lent{UINT64_MAX - 5, 800};
  EXPECT_EQ(found(lent, header), lent);
  EXPECT_THROW(found({0, 801}, header), Error);
  EXPECT_THROW(found({0, 0}, header), Error);
  FrameHeader after = header;
  after.offset = 901;
  EXPECT_THROW(found({0, 1}, after), Error);
}

// Headers that encode() does not write, with checksums that fit.
TEST(WireFrame, ForgedHeadersAreRefused) {
  const Frame tensor{{.kind = FrameKind::kTensor, .id = 1, .message_bytes = 4, .payload_bytes = 4}, ByteVector(4)};
  const Frame control{{.kind = FrameKind::kControl, .payload_bytes = 4}, ByteVector(4)};
  const auto refused = [](const Frame& frame, std::size_t at, int value) {
    ByteVector stream = bytes_of_frames({frame});
    stream[at] = static_cast<std::byte>(value);
    return Receiver().refusal(fuzz::with_checksums(stream));
  };
  EXPECT_EQ(refused(tensor, 8, 7), "") << "another id is good";
  EXPECT_NE(refused(tensor, 0, 'G').find("does not speak"), std::string::npos);
  EXPECT_NE(refused(tensor, 5, 1).find("wire version 257"), std::string::npos);
  EXPECT_NE(refused(tensor, 6, 0).find("unknown kind 0"), std::string::npos);
  EXPECT_NE(refused(tensor, 6, 6).find("unknown kind 6"), std::string::npos);
  EXPECT_NE(refused(tensor, 7, 7).find("unknown codec 7"), std::string::npos);
  EXPECT_NE(refused(tensor, 19, 0x80).find("is invalid"), std::string::npos);
  EXPECT_NE(refused(tensor, 23, 0x80).find("is invalid"), std::string::npos);
  EXPECT_NE(refused(tensor, 20, 1).find("is invalid"), std::string::npos);
  EXPECT_NE(refused(tensor, 28, 3).find("beyond the end at 3"), std::string::npos);
  EXPECT_NE(refused(tensor, 39, 0xff).find("beyond the end"), std::string::npos);
  EXPECT_NE(refused(tensor, 51, 0xff).find("are allowed"), std::string::npos);
  EXPECT_NE(refused(tensor, 48, 0).find("1 to 262144 are allowed"), std::string::npos);
  EXPECT_NE(refused(tensor, 6, 5).find("12 to 12 are allowed"), std::string::npos);
  for (const std::size_t at : {7U, 8U, 16U, 24U, 28U, 32U}) {
    EXPECT_NE(refused(control, at, 1).find("does not use"), std::string::npos) << at;
  }
}

TEST(WireFrame, EncodeRefusesWhatAParserWould) {
  const auto refused = [](FrameHeader header) {
    const ByteVector payload(header.payload_bytes);
    return failure(ErrorKind::kInvalidArgument, [&] { static_cast<void>(encode(header, payload)); });
  };
  const FrameHeader control{.kind = FrameKind::kControl, .payload_bytes = 1};
  const FrameHeader weights{.kind = FrameKind::kWeights, .id = 1, .payload_bytes = 1};
  const FrameHeader tensor{.kind = FrameKind::kTensor, .id = 1, .message_bytes = 1, .payload_bytes = 1};
  const FrameHeader probe{.kind = FrameKind::kProbe, .id = 1, .message_bytes = 1, .payload_bytes = 1};
  for (const FrameHeader& good : {control, weights, tensor, probe}) EXPECT_EQ(refused(good), "");
  const auto with = [&](FrameHeader header, auto member, auto value) {
    header.*member = value;
    return refused(header);
  };
  EXPECT_NE(with(control, &FrameHeader::kind, FrameKind{0}), "");
  EXPECT_NE(with(control, &FrameHeader::kind, FrameKind{6}), "");
  EXPECT_NE(with(tensor, &FrameHeader::codec, Codec{7}), "");
  EXPECT_EQ(with(tensor, &FrameHeader::codec, Codec::kJpeg), "");
  for (const FrameHeader& header : {control, weights, probe}) {
    EXPECT_NE(with(header, &FrameHeader::codec, Codec::kZstd), "");
    EXPECT_NE(with(header, &FrameHeader::tensor, 1), "");
    EXPECT_NE(with(header, &FrameHeader::rows_end, 1), "");
  }
  EXPECT_NE(with(control, &FrameHeader::id, 1U), "");
  EXPECT_NE(with(control, &FrameHeader::offset, 1U), "");
  EXPECT_NE(with(control, &FrameHeader::message_bytes, 1U), "");
  EXPECT_NE(with(weights, &FrameHeader::message_bytes, 1U), "");
  EXPECT_NE(with(control, &FrameHeader::payload_bytes, 0U), "");
  EXPECT_NE(with(weights, &FrameHeader::payload_bytes, 0U), "");
  EXPECT_NE(with(tensor, &FrameHeader::payload_bytes, 0U), "");
  EXPECT_NE(with(tensor, &FrameHeader::tensor, -1), "");
  EXPECT_NE(with(tensor, &FrameHeader::rows_begin, -1), "");
  EXPECT_NE(with(tensor, &FrameHeader::rows_begin, 1), "");
  EXPECT_NE(with(tensor, &FrameHeader::offset, 1U), "");
  EXPECT_NE(with(tensor, &FrameHeader::offset, UINT64_MAX), "");
  EXPECT_NE(with(probe, &FrameHeader::message_bytes, 0U), "");
  EXPECT_NE(with(weights, &FrameHeader::offset, kMaxWeightBytes), "");
  EXPECT_NE(with(weights, &FrameHeader::offset, UINT64_MAX), "");
  FrameHeader large{.kind = FrameKind::kWeights, .payload_bytes = kMaxDataBytes};
  EXPECT_EQ(refused(large), "");
  EXPECT_NE(with(large, &FrameHeader::payload_bytes, static_cast<std::uint32_t>(kMaxDataBytes + 1)), "");
  EXPECT_NE(with(control, &FrameHeader::payload_bytes, static_cast<std::uint32_t>(kMaxControlBytes + 1)), "");
}

TEST(WireFrame, TheNumberOfBytesIsThePayloads) {
  const ByteVector payload(3);
  Receiver receiver;
  receiver.push(*make_frame({.kind = FrameKind::kControl, .payload_bytes = 9}, payload));
  ASSERT_EQ(receiver.frames.size(), 1U);
  EXPECT_EQ(receiver.frames[0].header.payload_bytes, 3U);
  EXPECT_EQ(receiver.frames[0].payload, payload);
}

TEST(WireFrame, ControlFramesAreAsLargeAsAllowed) {
  const Frame small{{.kind = FrameKind::kControl, .payload_bytes = 100}, ByteVector(100)};
  const Frame large{{.kind = FrameKind::kControl, .payload_bytes = 101}, ByteVector(101)};
  Receiver receiver(100);
  receiver.push(bytes_of_frames({small}));
  EXPECT_EQ(receiver.frames.size(), 1U);
  // Refused by its header, before the payload comes.
  EXPECT_NE(receiver.refusal(std::span<const std::byte>(bytes_of_frames({large})).first(kHeaderBytes)), "");

  // A limit that is raised while a frame is handled applies from the next one on.
  FrameParser parser(100);
  int frames = 0;
  parser.push(bytes_of_frames({small, large}), [&](const ReceivedFrame&) {
    ++frames;
    parser.set_most_control_bytes(101);
  });
  EXPECT_EQ(frames, 2);
}

TEST(WireFrame, TheLargestControlFrameFits) {
  const Frame largest{{.kind = FrameKind::kControl, .payload_bytes = kMaxControlBytes}, ByteVector(kMaxControlBytes)};
  const ByteVector stream = bytes_of_frames({largest});
  Receiver receiver(SIZE_MAX);
  receiver.push(std::span(stream).first(stream.size() / 2));
  receiver.push(std::span(stream).subspan(stream.size() / 2));
  EXPECT_EQ(receiver.frames, std::vector<Frame>{largest});
}

TEST(WireFrame, SaysWhatIsWrong) {
  ByteVector stream = bytes_of_frames({every_kind()[0]});
  stream[4] = std::byte{2};
  EXPECT_NE(failure(ErrorKind::kMismatch, [&] { Receiver().push(stream); }), "");
  EXPECT_NE(Receiver().refusal(stream).find("wire version 2"), std::string::npos);
  stream[0] = std::byte{'G'};
  EXPECT_NE(Receiver().refusal(stream).find("does not speak this protocol"), std::string::npos);
}

// The fuzz target on streams of which some bytes are changed: broken promises abort the test.
TEST(WireFrame, MutatedStreamsAreRefusedOrRead) {
  Dice dice(2);
  ByteVector seed{std::byte{60}};
  for (const Frame& frame : every_kind()) append(seed, frame);
  fuzz::wire_frames(seed);
  for (int i = 0; i < 5000; ++i) {
    seed.front() = static_cast<std::byte>(dice.integer(0, 255));
    fuzz::wire_frames(test::mutated(dice, seed));
  }
}

}  // namespace
}  // namespace atl::infer::wire
