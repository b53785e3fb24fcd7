// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using std::chrono::milliseconds;

// Counts completions and keeps the first error.
class Waiter {
 public:
  Completion add() {
    const std::lock_guard lock(mutex_);
    ++open_;
    return [this](std::exception_ptr error) { finish(error, -1); };
  }
  ReceiveCompletion add_receive() {
    const std::lock_guard lock(mutex_);
    ++open_;
    return [this](std::exception_ptr error, int source) { finish(error, source); };
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }
  const std::vector<int>& sources() const { return sources_; }

 private:
  void finish(std::exception_ptr error, int source) {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    sources_.push_back(source);
    --open_;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  std::exception_ptr error_;
  std::vector<int> sources_;
};

constexpr std::size_t kPointToPointSizes[] = {0, 1, 100, 16383, 16384, 16385, 300000, 3000000};

class PointToPointOver : public ::testing::TestWithParam<transport::TransportChoice> {
 protected:
  Ranks make(const std::string& letters) {
    RankOptions options;
    options.islands = layout(letters);
    options.transport = GetParam();
    return Ranks(options);
  }
};

TEST_P(PointToPointOver, SizesArriveIntactInBothDirections) {
  auto ranks = make("AB");
  ranks.run_ok([](Group& group) {
    const int other = 1 - group.rank();
    for (const std::size_t bytes : kPointToPointSizes) {
      Waiter waiter;
      const auto out = random_bytes(bytes, group.rank());
      std::vector<std::byte> in(bytes);
      group.send(other, 7, DataType::kUInt8, out, {}, waiter.add());
      group.receive(other, 7, DataType::kUInt8, in, {}, waiter.add_receive());
      waiter.wait();
      EXPECT_EQ(in, random_bytes(bytes, other)) << bytes;
    }
  });
}

// Proves C-10.
TEST_P(PointToPointOver, NeverBlocksInTheOrderOfIssue) {
  auto ranks = make("AA");
  ranks.run_ok([](Group& group) {
    const int other = 1 - group.rank();
    Waiter waiter;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in(20);
    for (int i = 0; i < 20; ++i) out.push_back(random_bytes(i % 2 ? 500000 : 50, i));
    for (int i = 0; i < 20; ++i)
      group.send(other, static_cast<std::uint64_t>(i), DataType::kUInt8, out[static_cast<std::size_t>(i)], {},
                 waiter.add());
    for (int i = 19; i >= 0; --i) {
      auto& buffer = in[static_cast<std::size_t>(i)];
      buffer.resize(out[static_cast<std::size_t>(i)].size());
      group.receive(other, static_cast<std::uint64_t>(i), DataType::kUInt8, buffer, {}, waiter.add_receive());
    }
    waiter.wait();
    EXPECT_EQ(in, out);
  });
}

// Proves C-10.
TEST_P(PointToPointOver, EqualTagsKeepTheirOrder) {
  auto ranks = make("AB");
  ranks.run_ok([](Group& group) {
    std::mt19937 random(42);  // the same sizes on both ranks
    std::vector<std::vector<std::byte>> messages;
    for (int i = 0; i < 400; ++i) messages.push_back(random_bytes(random() % (i % 10 == 0 ? 100000 : 3000), i));
    Waiter waiter;
    std::vector<std::vector<std::byte>> in;
    for (const auto& message : messages) in.emplace_back(message.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (group.rank() == 0) group.send(1, 0, DataType::kUInt8, messages[i], {}, waiter.add());
      if (group.rank() == 1) group.receive(0, 0, DataType::kUInt8, in[i], {}, waiter.add_receive());
    }
    waiter.wait();
    if (group.rank() == 1) {
      EXPECT_EQ(in, messages);
    }
  });
}

TEST_P(PointToPointOver, AnySourceTakesFromEverybody) {
  auto ranks = make("ABCA");
  ranks.run_ok([](Group& group) {
    Waiter waiter;
    if (group.rank() > 0) {
      const auto small = random_bytes(10, group.rank());
      const auto large = random_bytes(200000, group.rank());
      group.send(0, 1, DataType::kUInt8, small, {}, waiter.add());
      group.send(0, 2, DataType::kUInt8, large, {}, waiter.add());
      return waiter.wait();
    }
    for (const std::size_t bytes : {std::size_t{200000}, std::size_t{10}}) {
      std::vector<int> seen;
      for (int i = 0; i < 3; ++i) {
        Waiter one;
        std::vector<std::byte> in(bytes);
        group.receive(kAnySource, bytes == 10 ? 1 : 2, DataType::kUInt8, in, {}, one.add_receive());
        one.wait();
        ASSERT_EQ(one.sources().size(), 1u);
        EXPECT_EQ(in, random_bytes(bytes, one.sources()[0]));
        seen.push_back(one.sources()[0]);
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
    }
  });
}

TEST_P(PointToPointOver, MessagesNobodyTakesStopNothing) {
  auto ranks = make("AB");
  ranks.run_ok([](Group& group) {
    // 5,000 messages wait at rank 1 or before it, and a later one with another tag still gets through, as do
    // collectives.
    Waiter stuck;
    const auto small = random_bytes(1000, 1);
    if (group.rank() == 0) {
      for (int i = 0; i < 5000; ++i) group.send(1, 99, DataType::kUInt8, small, {}, stuck.add());
    }
    group.barrier();
    Waiter waiter;
    std::vector<std::byte> data(100);
    if (group.rank() == 1) group.send(0, 5, DataType::kUInt8, data, {}, waiter.add());
    if (group.rank() == 0) group.receive(1, 5, DataType::kUInt8, data, {}, waiter.add_receive());
    waiter.wait();
    group.barrier();
    std::vector<std::byte> in(1000);
    for (int i = 0; i < 5000 && group.rank() == 1; ++i) {
      Waiter one;
      group.receive(0, 99, DataType::kUInt8, in, {}, one.add_receive());
      one.wait();
    }
    stuck.wait();
  });
}

TEST_P(PointToPointOver, MessagesOutliveTheirSender) {
  constexpr int kMessages = 20;
  auto ranks = make("AB");
  ranks.run_ok([&](Group& group) {
    group.barrier();
    if (group.rank() == 0) {
      Waiter sent;
      std::vector<std::vector<std::byte>> messages;
      for (int i = 0; i < kMessages; ++i) messages.push_back(random_bytes(1000, i));
      for (int i = 0; i < kMessages; ++i)
        group.send(1, static_cast<std::uint64_t>(i), DataType::kUInt8, messages[static_cast<std::size_t>(i)], {},
                   sent.add());
      sent.wait();
      group.shutdown();
      ranks.context(0)->endpoint().shutdown(Deadline::after(std::chrono::seconds(5)));
      return;
    }
    transport::Link& link = *ranks.context(1)->endpoint().links().at(0);
    while (link.state() == transport::LinkState::kUp) std::this_thread::yield();
    for (int i = kMessages; i-- > 0;) {  // so that most of them are set aside first
      std::vector<std::byte> data(1000);
      Waiter one;
      group.receive(0, static_cast<std::uint64_t>(i), DataType::kUInt8, data, {}, one.add_receive());
      one.wait();
      EXPECT_EQ(data, random_bytes(1000, i));
    }
  });
  const auto errors = ranks.run([](Group& group) {
    if (group.rank() == 0) return;
    std::byte data{};
    Waiter one;
    group.receive(0, 1, DataType::kUInt8, {&data, 1}, {}, one.add_receive());
    one.wait();
  });
  EXPECT_NE(errors[1].find("rank 0 has left the group"), std::string::npos) << errors[1];
}

TEST_P(PointToPointOver, OnlyMessagesOfTheRankThatLeftFail) {
  auto ranks = make("ABA");
  ranks.run_ok([](Group& group) { group.barrier(); });
  ranks.run_ok([&](Group& group) {
    if (group.rank() == 1) return group.shutdown();
    std::byte data{};
    if (group.rank() == 2) {
      Waiter start;
      group.receive(0, 1, DataType::kUInt8, {&data, 1}, {}, start.add_receive());
      start.wait();
      Waiter sent;
      group.send(0, 2, DataType::kUInt8, {&data, 1}, {}, sent.add());
      return sent.wait();
    }
    Waiter other;
    group.receive(2, 2, DataType::kUInt8, {&data, 1}, {}, other.add_receive());
    Waiter lost;
    std::byte never{};
    group.receive(1, 2, DataType::kUInt8, {&never, 1}, {}, lost.add_receive());
    try {
      lost.wait();
      ADD_FAILURE() << "rank 1 has sent nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_STREQ(error.what(), "receive from rank 1 on rank 0: rank 1 has left the group");
    }
    Waiter start;
    group.send(2, 1, DataType::kUInt8, {&data, 1}, {}, start.add());
    start.wait();
    other.wait();
  });
}

TEST_P(PointToPointOver, SizeAndDtypeMismatchAreNamedOnBothSides) {
  for (const bool wrong_dtype : {false, true}) {
    auto ranks = make("AB");
    const auto errors = ranks.run([&](Group& group) {
      std::vector<std::byte> data(wrong_dtype ? 400000 : group.rank() == 0 ? 400000 : 400004);
      Waiter waiter;
      const auto dtype = wrong_dtype && group.rank() == 1 ? DataType::kInt32 : DataType::kFloat32;
      if (group.rank() == 0) group.send(1, 3, DataType::kFloat32, data, {}, waiter.add());
      if (group.rank() == 1) group.receive(0, 3, dtype, data, {}, waiter.add_receive());
      waiter.wait();
    });
    for (const auto& error : errors) EXPECT_NE(error.find("rank 0 (tag 3)"), std::string::npos) << error;
  }
}

TEST_P(PointToPointOver, TimeoutsSayWhoIsWaitedFor) {
  auto ranks = make("AB");
  const auto errors = ranks.run([](Group& group) {
    if (group.rank() == 1) return;
    Waiter waiter;
    std::vector<std::byte> data(10);
    group.receive(1, 4, DataType::kUInt8, data, milliseconds(200), waiter.add_receive());
    waiter.wait();
  });
  EXPECT_NE(errors[0].find("rank 1 has not sent it"), std::string::npos) << errors[0];
}

/// Host memory for a message, which counts the bytes that have arrived.
struct Counted final : Landing {
  explicit Counted(std::size_t bytes) : memory(bytes) {}
  const std::shared_ptr<MessageDevice>& device() const noexcept override { return none; }
  std::byte* on_device() override { return memory.data(); }
  std::byte* on_host() override { return memory.data(); }
  void arrived(std::uint64_t bytes) override {
    EXPECT_GT(bytes, here.load());
    here = bytes;
    here.notify_all();
  }

  const std::shared_ptr<MessageDevice> none;
  std::vector<std::byte> memory;
  std::atomic<std::uint64_t> here{0};
};

// No byte is sent before it is loaded, and loaded bytes do not wait for others.
TEST_P(PointToPointOver, AMessageFollowsItsBytes) {
  constexpr std::size_t kStep = 700'001;
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{20'000}, 3 * kStep + 5}) {
    auto ranks = make("AB");
    const auto in = std::make_shared<Counted>(bytes);
    ranks.run_ok([&](Group& group) {
      Waiter waiter;
      if (group.rank() == 1) {
        group.receive(0, 1, DataType::kUInt8, bytes, in, {}, waiter.add_receive());
        return waiter.wait();
      }
      const auto data = random_bytes(bytes, 5);
      std::vector<std::byte> coming(bytes);
      const auto loaded = std::make_shared<std::atomic<std::uint64_t>>(0);
      group.send(1, 1, DataType::kUInt8, coming, {}, waiter.add(), {nullptr, loaded});
      for (std::size_t begin = 0; begin < bytes; begin += kStep) {
        const std::size_t end = std::min(bytes, begin + kStep);
        std::copy(data.begin() + static_cast<std::ptrdiff_t>(begin), data.begin() + static_cast<std::ptrdiff_t>(end),
                  coming.begin() + static_cast<std::ptrdiff_t>(begin));
        EXPECT_LE(in->here, begin);
        *loaded = end;
        group.note_loaded();
        for (auto here = in->here.load(); end < bytes && here < end; here = in->here) in->here.wait(here);
      }
      waiter.wait();
    });
    EXPECT_EQ(in->memory, random_bytes(bytes, 5)) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Links, PointToPointOver,
                         ::testing::Values(transport::TransportChoice::kShm, transport::TransportChoice::kTcp),
                         [](const auto& param_info) {
                           return param_info.param == transport::TransportChoice::kShm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace atl::test
