// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "atoll/core/error.h"

namespace atl::transport::tcp {
namespace {

using Bytes = std::vector<std::byte>;

/// Records what the parser finds.
class Recorder : public MessageSink {
 public:
  std::vector<std::string> found;
  bool drops = false;

  std::byte* on_data(std::uint32_t channel, std::uint32_t payload_bytes) override {
    found.push_back("data " + std::to_string(channel));
    frame_.assign(sizeof(FrameHeader) + payload_bytes, std::byte{0});
    return drops ? nullptr : frame_.data();
  }
  void on_data_complete(std::uint32_t channel) override {
    std::string text = "complete " + std::to_string(channel) + " ";
    for (std::size_t i = sizeof(FrameHeader); i < frame_.size(); ++i)
      text += std::to_string(std::to_integer<int>(frame_[i])) + ",";
    found.push_back(text);
  }
  void on_credit(std::uint32_t channel, std::uint64_t released) override {
    found.push_back("credit " + std::to_string(channel) + " " + std::to_string(released));
  }
  void on_open(std::uint32_t channel, const OpenBody& body) override {
    found.push_back("open " + std::to_string(channel) + " " + std::to_string(body.group) + " " +
                    std::to_string(body.window_bytes));
  }
  void on_close(std::uint32_t channel) override { found.push_back("close " + std::to_string(channel)); }
  void on_control(std::span<const std::byte> message) override {
    found.push_back("control " + std::to_string(message.size()));
  }
  void on_heartbeat(std::uint64_t interval_ms) override { found.push_back("heartbeat " + std::to_string(interval_ms)); }
  void on_bye() override { found.emplace_back("bye"); }
  std::byte* on_segment(std::uint32_t channel, std::uint64_t position, std::uint32_t bytes) override {
    found.push_back("segment " + std::to_string(channel) + " at " + std::to_string(position));
    segment_.assign(bytes, std::byte{0});
    return drops ? nullptr : segment_.data();
  }
  void on_segment_complete() override {
    std::string text = "all ";
    for (const std::byte byte : segment_) text += std::to_string(std::to_integer<int>(byte)) + ",";
    found.push_back(text);
  }
  void on_ack(std::uint64_t total) override { found.push_back("ack " + std::to_string(total)); }
  void on_probe() override { found.emplace_back("probe"); }

 private:
  Bytes frame_;
  Bytes segment_;
};

void append(Bytes& stream, std::span<const std::byte> bytes) {
  stream.insert(stream.end(), bytes.begin(), bytes.end());
}

void append(Bytes& stream, Type type, std::uint32_t channel, std::span<const std::byte> body) {
  append(stream, bytes_of(Prefix{.type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size())}));
  append(stream, body);
}

void append_segment(Bytes& stream, std::uint32_t channel, std::uint64_t position, std::size_t bytes) {
  const Prefix prefix{.type = Type::kSegment, .channel = channel, .length = static_cast<std::uint32_t>(bytes)};
  append(stream, bytes_of(prefix));
  append(stream, bytes_of(position));
  for (std::size_t i = 0; i < bytes; ++i) stream.push_back(static_cast<std::byte>(i + 1));
}

void append_data(Bytes& stream, std::uint32_t channel, std::size_t payload_bytes) {
  append(stream, bytes_of(Prefix{
                     .type = Type::kData, .channel = channel, .length = static_cast<std::uint32_t>(payload_bytes)}));
  append(stream, bytes_of(FrameHeader{.payload_bytes = static_cast<std::uint32_t>(payload_bytes)}));
  for (std::size_t i = 0; i < payload_bytes; ++i) stream.push_back(static_cast<std::byte>(i));
}

Bytes everything() {
  Bytes stream;
  append(stream, Type::kHeartbeat, 0, bytes_of(std::uint64_t{30000}));
  append(stream, Type::kOpen, 1, bytes_of(OpenBody{.group = 9, .index = 1, .bell = 0, .window_bytes = 65536}));
  append_data(stream, 1, 5);
  append_data(stream, 1, 0);
  append(stream, Type::kCredit, 4, bytes_of(std::uint64_t{1} << 40));
  append(stream, Type::kControl, 0, Bytes(kMaxControlBytes));
  append(stream, Type::kControl, 0, {});
  append(stream, Type::kClose, 1, {});
  append_segment(stream, 2, 1 << 20, 3);
  append(stream, Type::kProbe, 0, Bytes(70));
  append(stream, Type::kAck, 0, bytes_of(std::uint64_t{12345}));
  append(stream, Type::kProbe, 0, {});
  append_segment(stream, 0, 64, 1);
  append(stream, Type::kBye, 0, {});
  return stream;
}

const std::vector<std::string> kFound = {"heartbeat 30000",
                                         "open 1 9 65536",
                                         "data 1",
                                         "complete 1 0,1,2,3,4,",
                                         "data 1",
                                         "complete 1 ",
                                         "credit 4 1099511627776",
                                         "control 4096",
                                         "control 0",
                                         "close 1",
                                         "segment 2 at 1048576",
                                         "all 1,2,3,",
                                         "probe",
                                         "ack 12345",
                                         "probe",
                                         "segment 0 at 64",
                                         "all 1,",
                                         "bye"};

TEST(TcpParser, FindsEveryMessageHoweverTheStreamIsCut) {
  const Bytes stream = everything();
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{11}, std::size_t{12}, std::size_t{13},
                                 std::size_t{77}, stream.size()}) {
    Recorder recorder;
    Parser parser(recorder, 1000);
    for (std::size_t at = 0; at < stream.size(); at += step) {
      parser.consume(std::span(stream).subspan(at, std::min(step, stream.size() - at)));
    }
    EXPECT_EQ(recorder.found, kFound) << "step " << step;
  }
}

TEST(TcpParser, DirectBytesAndConsumedBytesMix) {
  const Bytes stream = everything();
  std::mt19937 random(20240607);
  for (int round = 0; round < 500; ++round) {
    Recorder recorder;
    Parser parser(recorder, 1000);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t step = std::min<std::size_t>(1 + random() % 60, stream.size() - at);
      const std::size_t direct = std::min(step, parser.direct().size());
      std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), direct, parser.direct().begin());
      if (direct != 0) parser.advance_direct(direct);
      parser.consume(std::span(stream).subspan(at + direct, step - direct));
      at += step;
    }
    ASSERT_EQ(recorder.found, kFound) << "round " << round;
  }
}

TEST(TcpParser, DroppedFramesLeaveTheStreamInStep) {
  Recorder recorder;
  recorder.drops = true;
  Parser parser(recorder, 1000);
  parser.consume(everything());
  EXPECT_TRUE(parser.direct().empty());
  EXPECT_EQ(recorder.found.size(), kFound.size());
  EXPECT_EQ(recorder.found.back(), "bye");
}

TEST(TcpParser, TheRestOfASegmentMayGoNowhere) {
  Bytes stream;
  append_segment(stream, 1, 0, 100);
  append(stream, Type::kAck, 0, bytes_of(std::uint64_t{7}));
  for (std::size_t first = 20; first < 120; ++first) {
    Recorder recorder;
    Parser parser(recorder, 1000);
    parser.consume(std::span(stream).first(first));
    ASSERT_EQ(parser.direct().size(), first == 20 ? 100 : 120 - first);
    parser.drop_rest();
    EXPECT_TRUE(parser.direct().empty());
    parser.consume(std::span(stream).subspan(first));
    ASSERT_EQ(recorder.found.size(), 3U);
    EXPECT_EQ(recorder.found.back(), "ack 7");
  }
}

void expect_protocol_error(const Prefix& prefix) {
  Recorder recorder;
  Parser parser(recorder, 1000);
  try {
    parser.consume(bytes_of(prefix));
    FAIL() << "no error for type " << static_cast<int>(prefix.type) << " with " << prefix.length << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
  }
  EXPECT_TRUE(recorder.found.empty());
}

TEST(TcpParser, WrongPrefixesAreProtocolErrorsBeforeTheirBodies) {
  expect_protocol_error({.magic = 0x1234, .type = Type::kBye});
  expect_protocol_error({.type = Type::kBye, .zero = 1});
  expect_protocol_error({.type = static_cast<Type>(0)});
  expect_protocol_error({.type = static_cast<Type>(200)});
  expect_protocol_error({.type = Type::kData, .channel = 1, .length = 1001});
  expect_protocol_error({.type = Type::kData, .channel = 1, .length = 0xffffffff});
  expect_protocol_error({.type = Type::kControl, .length = kMaxControlBody + 1});
  expect_protocol_error({.type = Type::kCredit, .length = 7});
  expect_protocol_error({.type = Type::kOpen, .length = 25});
  expect_protocol_error({.type = Type::kHeartbeat, .length = 0});
  expect_protocol_error({.type = Type::kBye, .length = 1});
  expect_protocol_error({.type = Type::kClose, .length = 1});
  expect_protocol_error({.type = Type::kSegment, .channel = 1, .length = 0});
  expect_protocol_error({.type = Type::kSegment, .channel = 1, .length = kMaxSegment + 1});
  expect_protocol_error({.type = Type::kProbe, .length = kMaxProbe + 1});
  expect_protocol_error({.type = Type::kAck, .length = 4});
}

}  // namespace
}  // namespace atl::transport::tcp
