// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/link_exchange.h"

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "picture_cases.h"

// Lossy packing of rows on a link: which rows are packed, and which loss is reported.
namespace atl::infer {
namespace {

using test::bytes_of_values;
using test::ByteVector;
using test::picture;
using test::values_of;

// Frames arrive at once.
class Wire : public FrameSender {
 public:
  explicit Wire(Arrivals& arrivals) : arrivals_(arrivals) {}
  void send(const wire::Message& /*message*/) override {}
  void send(const wire::FrameHeader& header, HostBytes payload) override {
    codec = header.codec;
    static_cast<void>(arrivals_.take(header, payload.bytes));
  }
  wire::Codec codec = wire::Codec::kRaw;

 private:
  Arrivals& arrivals_;
};

// A graph with a picture, another input, and what is made of the picture; all of them go over the link, undivided.
class LossyLink : public testing::Test {
 protected:
  LossyLink() {
    test::Builder builder;
    image_ = builder.input({1, 3, 30, 40}, Dtype::kUint8);
    other_ = builder.input({1, 3, 30, 40}, Dtype::kFloat32);
    mask_ = builder.input({7, 30, 40}, Dtype::kFloat32);
    hidden_ = builder.call("aten::relu", {TensorId{image_}}, {1, 3, 30, 40}, Dtype::kUint8);
    builder.output(hidden_);
    graph_ = builder.graph();
    operators_ = operators_of(graph_, -1, -1);
    for (const int tensor : {image_, other_, mask_, hidden_}) {
      program_.steps.push_back({Step::Kind::kReceive, tensor, {0, 1}});
    }
  }

  struct Sent {
    ByteVector bytes;  // as they arrive
    wire::Codec codec;
    std::uint64_t size;
    std::optional<wire::Loss> loss;
  };
  Sent sent(wire::Codec lossy, int tensor, const ByteVector& bytes) {
    Ends ends(*this, lossy, true);
    return ends.send(1, tensor, bytes);
  }

  struct Ends {
    Ends(const LossyLink& test, wire::Codec lossy, bool measures)
        : arrivals(test.graph_, test.operators_, test.program_),
          link(arrivals),
          exchange(
              test.graph_, test.operators_, link, arrivals, [] { return 1e3; }, lossy, measures) {}
    Sent send(std::uint64_t inference, int tensor, const ByteVector& bytes) {
      arrivals.begin(inference);
      exchange.begin(inference);
      exchange.send(tensor, {0, 1}, {bytes, nullptr});
      const auto arrived = exchange.receive(tensor, {0, 1}, Deadline::after(std::chrono::seconds(0)));
      EXPECT_TRUE(arrived);
      if (!arrived) return {};
      return {{arrived->bytes.begin(), arrived->bytes.end()}, link.codec, exchange.sent_bytes(), exchange.loss()};
    }
    Arrivals arrivals;
    Wire link;
    LinkExchange exchange;
  };

  static ByteVector pixels() { return bytes_of_values(picture({40, 90, 1})); }  // as many as 3 x 30 x 40
  static std::vector<float> floats(std::size_t count) {
    std::vector<float> values;
    test::Dice dice(3);
    for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(dice.real(-3, 3)));
    return values;
  }

  int image_ = 0;
  int other_ = 0;
  int mask_ = 0;
  int hidden_ = 0;
  Graph graph_;
  Operators operators_;
  Program program_;
};

TEST_F(LossyLink, JpegIsForInputsThatAreImages) {
  const Sent image = sent(wire::Codec::kJpeg, image_, pixels());
  EXPECT_EQ(image.codec, wire::Codec::kJpeg);
  EXPECT_LT(image.size, 3600U / 2);
  ASSERT_TRUE(image.loss);
  EXPECT_GT(image.loss->max, 0);
  EXPECT_LT(image.loss->mean, 0.05);
  const auto errors = test::errors_between(values_of<std::uint8_t>(pixels()), values_of<std::uint8_t>(image.bytes));
  const auto all = values_of<std::uint8_t>(pixels());
  EXPECT_DOUBLE_EQ(image.loss->max, errors.most / *std::max_element(all.begin(), all.end()));

  for (const int tensor : {hidden_, mask_}) {
    const ByteVector bytes = tensor == hidden_ ? pixels() : bytes_of_values(floats(7 * 30 * 40));
    const Sent exact = sent(wire::Codec::kJpeg, tensor, bytes);
    EXPECT_TRUE(wire::is_lossless(exact.codec));
    EXPECT_EQ(exact.bytes, bytes);
    EXPECT_FALSE(exact.loss);
  }
}

TEST_F(LossyLink, HalvesAreForAllFloats) {
  for (const int tensor : {other_, mask_}) {
    const ByteVector bytes = bytes_of_values(floats(tensor == other_ ? 3600 : 8400));
    const Sent half = sent(wire::Codec::kHalf, tensor, bytes);
    EXPECT_EQ(half.codec, wire::Codec::kHalf);
    EXPECT_EQ(half.size, bytes.size() / 2);
    ASSERT_TRUE(half.loss);
    EXPECT_GT(half.loss->max, 0);
    EXPECT_LT(half.loss->max, 1.0 / 2048);
  }
  const Sent image = sent(wire::Codec::kHalf, image_, pixels());
  EXPECT_EQ(image.bytes, pixels());
  EXPECT_FALSE(image.loss);
}

// Infinities have no step: the message is packed without loss.
TEST_F(LossyLink, WhatALossyCodecDoesNotTakeIsPackedLikeAnyOther) {
  std::vector<float> few(3600, 1.0F);
  few[77] = std::numeric_limits<float>::infinity();
  const Sent found = sent(wire::Codec::kInt8, other_, bytes_of_values(few));
  EXPECT_EQ(found.bytes, bytes_of_values(few));
  EXPECT_TRUE(wire::is_lossless(found.codec));
  EXPECT_LT(found.size, 3600U);
}

TEST_F(LossyLink, EverySixteenthMessageIsLookedAt) {
  const ByteVector bytes = bytes_of_values(floats(3600));
  Ends ends(*this, wire::Codec::kHalf, true);
  for (std::uint64_t inference = 1; inference <= 33; ++inference) {
    EXPECT_EQ(ends.send(inference, other_, bytes).loss.has_value(), inference % 16 == 1) << inference;
  }
  Ends silent(*this, wire::Codec::kHalf, false);
  EXPECT_FALSE(silent.send(1, other_, bytes).loss);
}

}  // namespace
}  // namespace atl::infer
