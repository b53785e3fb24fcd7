// SPDX-License-Identifier: Apache-2.0
// Corrupted bytes and differing results are found with ATOLL_CHECK_DATA; without it they pass unnoticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "atoll/collectives/checksum.h"
#include "atoll/collectives/describe.h"
#include "atoll/collectives/peer_ports.h"
#include "tests/support/peers.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using ::testing::HasSubstr;
using transport::Bell;
using transport::FrameHeader;

constexpr std::size_t kElements = 16;
constexpr std::size_t kElementBytes = kElements * sizeof(float);

std::vector<float> numbers(std::size_t count = kElements) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

Segment all_of(std::vector<float>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)};
}

Call call_of(Operation operation, std::vector<float>& data, int root = -1) {
  Call call;
  call.operation = operation;
  call.root = root;
  call.input = call.output = {all_of(data)};
  return call;
}

/// Rank 0 runs normally; the test writes the frames of rank 1, as if they had been corrupted on the way.
class DataChecks : public ::testing::TestWithParam<transport::TransportChoice> {
 protected:
  void connect(bool check_data) {
    RankOptions options;
    options.islands = layout("AB");
    options.transport = GetParam();
    options.check_data = check_data;
    ranks_ = std::make_unique<Ranks>(options);
    ranks_->run_ok([this](Group& group) {
      std::vector<float> data = numbers();
      group.run(call_of(Operation::kAllReduce, data));
      if (group.rank() == 1) last_result_ = checksum_of({all_of(data).data, kElementBytes});
    });
  }

  void send_frame(Port port, FrameHeader header, const std::vector<float>& values) {
    transport::Endpoint& endpoint = ranks_->context(1)->endpoint();
    const Bell bell = port == Port::kMessages ? Bell::kPointToPoint : Bell::kCollective;
    transport::Channel& channel =
        endpoint.links().at(0)->channel({ranks_->group(1).id(), static_cast<std::uint32_t>(port), bell});
    header.payload_bytes = kElementBytes;
    const std::span payload(reinterpret_cast<const std::byte*>(values.data()), kElementBytes);
    wait_on_bell(endpoint, bell, "room", [&] { return channel.try_send(header, payload); });
  }

  FrameHeader of_broadcast(std::uint64_t checksum, std::uint64_t last_result) {
    FrameHeader header;
    header.kind = static_cast<std::uint8_t>(FrameKind::kCollective);
    header.operation = static_cast<std::uint8_t>(Operation::kBroadcast);
    header.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
    header.root = 1;
    header.sequence = sequence_of(1, 0);
    header.count = kElements;
    header.checksum = checksum;
    header.tag = last_result;
    return header;
  }

  /// Returns what rank 0 receives from a broadcast of rank 1.
  std::vector<float> received(const FrameHeader& header, const std::vector<float>& values) {
    send_frame(Port::kDown, header, values);
    std::vector<float> data(kElements);
    ranks_->group(0).run(call_of(Operation::kBroadcast, data, 1));
    return data;
  }

  std::string error_of(const std::function<void()>& body, ErrorKind kind) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  std::unique_ptr<Ranks> ranks_;
  std::uint64_t last_result_ = 0;
};

std::vector<float> with_a_flipped_bit(std::vector<float> values) {
  reinterpret_cast<std::uint8_t*>(values.data())[37] ^= 0x10;
  return values;
}

std::uint64_t sum_of(std::vector<float> values) { return checksum_of({all_of(values).data, kElementBytes}); }

TEST_P(DataChecks, AFlippedBitIsNamed) {
  connect(true);
  const auto values = numbers();
  const auto text = error_of([&] { received(of_broadcast(sum_of(values), last_result_), with_a_flipped_bit(values)); },
                             ErrorKind::kProtocol);
  EXPECT_THAT(
      text, HasSubstr("broadcast #1 (float32, 16 elements, root 1) on rank 0: bytes 0 to 63 from rank 1 were changed"));
}

TEST_P(DataChecks, WithoutTheCheckItPassesUnnoticed) {
  connect(false);
  EXPECT_EQ(received(of_broadcast(0, 0), with_a_flipped_bit(numbers())), with_a_flipped_bit(numbers()));
}

TEST_P(DataChecks, WholeBytesPass) {
  connect(true);
  EXPECT_EQ(received(of_broadcast(sum_of(numbers()), last_result_), numbers()), numbers());
}

TEST_P(DataChecks, DifferentResultsAreNamedByTheNextCollective) {
  connect(true);
  const auto text =
      error_of([&] { received(of_broadcast(sum_of(numbers()), last_result_ ^ 4), numbers()); }, ErrorKind::kInternal);
  EXPECT_THAT(text, HasSubstr("the results of all_reduce #0 (sum, float32, 16 elements) differ"));
  EXPECT_THAT(text, HasSubstr("on rank 1"));
}

TEST_P(DataChecks, AFlippedBitOfAMessageIsNamed) {
  connect(true);
  FrameHeader header;
  header.kind = static_cast<std::uint8_t>(FrameKind::kMessage);
  header.operation = static_cast<std::uint8_t>(Operation::kSend);
  header.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  header.root = -1;
  header.tag = 7;
  header.count = kElementBytes;
  header.sequence = 1;
  header.checksum = sum_of(numbers());
  std::vector<float> data(kElements);
  std::promise<void> done;
  ranks_->group(0).receive(
      1, 7, DataType::kFloat32, std::span(all_of(data).data, kElementBytes), {},
      [&](std::exception_ptr error, int) { error ? done.set_exception(error) : done.set_value(); });
  send_frame(Port::kMessages, header, with_a_flipped_bit(numbers()));
  EXPECT_THAT(error_of([&] { done.get_future().get(); }, ErrorKind::kProtocol),
              HasSubstr("bytes 0 to 63 of a message from rank 1 to rank 0 were changed"));
}

INSTANTIATE_TEST_SUITE_P(Transports, DataChecks,
                         ::testing::Values(transport::TransportChoice::kShm, transport::TransportChoice::kTcp),
                         [](const auto& layout) {
                           return std::string(layout.param == transport::TransportChoice::kShm ? "Shm" : "Tcp");
                         });

// No fault is reported for intact data: every kind of schedule, sizes of one frame and of many.
TEST(HonestData, PassesEveryCheck) {
  for (const auto* letters : {"A", "AB", "AAB", "ABAB", "AAAAAABB"}) {
    SCOPED_TRACE(letters);
    RankOptions options;
    options.islands = layout(letters);
    options.check_data = true;
    options.check_values = ValueCheck::kRaise;
    Ranks ranks(options);
    ranks.run_ok([&](Group& group) {
      const auto size = static_cast<std::size_t>(group.size());
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{700'000}}) {
        std::vector<float> data(count, static_cast<float>(group.rank()));
        group.run(call_of(Operation::kAllReduce, data));
        group.run(call_of(Operation::kBroadcast, data, group.size() - 1));
        std::vector<float> all(count / 8 * size);
        Call gather;
        gather.operation = Operation::kAllGather;
        for (std::size_t i = 0; i < size; ++i)
          gather.output.push_back(
              {reinterpret_cast<std::byte*>(all.data() + count / 8 * i), count / 8 * sizeof(float)});
        gather.input = {gather.output[static_cast<std::size_t>(group.rank())]};
        group.run(gather);
        group.barrier();
        if (size < 2 || group.rank() > 1) continue;
        std::promise<void> done;
        const auto finish = [&](std::exception_ptr error) { error ? done.set_exception(error) : done.set_value(); };
        const std::span bytes(all_of(data).data, all_of(data).bytes);
        if (group.rank() == 0) group.send(1, 3, DataType::kFloat32, bytes, {}, finish);
        if (group.rank() == 1)
          group.receive(0, 3, DataType::kFloat32, bytes, {}, [&](std::exception_ptr e, int) { finish(e); });
        done.get_future().get();
      }
    });
  }
}

}  // namespace
}  // namespace atl::test
