// SPDX-License-Identifier: Apache-2.0
// Calls whose input is still being loaded, and whose output is passed on, while they cross the bridge.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>

#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

std::byte value(int from, int to, std::size_t place) {
  return static_cast<std::byte>((place * 31 + static_cast<std::size_t>(from) * 7 + static_cast<std::size_t>(to)) % 251);
}

/// Adapts functions to the interface.
class Parts final : public CallProgress {
 public:
  using IsLoaded = std::function<bool(std::uint32_t, std::uint64_t)>;
  using Note = std::function<void(std::uint32_t, std::uint64_t)>;
  explicit Parts(IsLoaded is_loaded, Note note = {}) : is_loaded_(std::move(is_loaded)), note_(std::move(note)) {}

  bool is_loaded() override { return true; }
  bool comes_in_parts() const override { return true; }
  bool is_loaded(std::uint32_t segment, std::uint64_t end) override { return is_loaded_(segment, end); }
  void arrived(std::uint32_t segment, std::uint64_t end) override {
    if (note_) note_(segment, end);
  }

 private:
  const IsLoaded is_loaded_;
  const Note note_;
};

/// How many bytes from each rank to each other have arrived.
using Arrived = std::map<std::pair<int, int>, std::atomic<std::uint64_t>>;

/// One rank's part of a gather, scatter or all_to_all whose input is loaded in steps. A step is loaded only when the
/// one before has arrived.
class Streamed {
 public:
  Streamed(Group& group, Operation operation, std::size_t bytes, std::size_t step, Arrived& arrived)
      : group_(group), bytes_(bytes), step_(step), arrived_(arrived) {
    call_.operation = operation;
    call_.dtype = DataType::kUInt8;
    call_.root = operation == Operation::kAllToAll ? -1 : 1;
    std::vector<int> all(static_cast<std::size_t>(group.size()));
    std::iota(all.begin(), all.end(), 0);
    const bool has_all = call_.root < 0 || call_.root == group.rank();
    if (has_all) targets_ = sources_ = all;
    if (operation == Operation::kGather) targets_ = {call_.root};
    if (operation == Operation::kScatter) sources_ = {call_.root};
    for (const int peer : targets_) call_.input.push_back(segment(inputs_[peer]));
    for (const int peer : sources_) call_.output.push_back(segment(outputs_[peer]));
    load(group.rank(), bytes);
    load_step();
    call_.progress =
        std::make_shared<Parts>([this](std::uint32_t segment, std::uint64_t end) { return is_loaded(segment, end); },
                                [this](std::uint32_t segment, std::uint64_t end) { note(segment, end); });
  }

  void run() {
    group_.run(call_);
    for (const int peer : sources_) {
      for (std::size_t i = 0; i < bytes_; ++i) {
        ASSERT_EQ(outputs_[peer][i], value(peer, group_.rank(), i)) << i << " from rank " << peer;
      }
      if (peer == group_.rank()) continue;
      EXPECT_EQ(arrived_.at({peer, group_.rank()}), bytes_);
    }
  }

  Call& call() { return call_; }

 private:
  Segment segment(std::vector<std::byte>& memory) {
    memory.resize(bytes_);
    return {memory.data(), bytes_};
  }

  void load(int target, std::size_t end) {
    const auto found = inputs_.find(target);
    if (found == inputs_.end()) return;
    for (std::size_t i = 0; i < end; ++i) found->second[i] = value(group_.rank(), target, i);
  }

  void load_step() {
    here_ = std::min(bytes_, here_ + step_);
    for (const int peer : targets_) {
      if (peer != group_.rank()) load(peer, here_);
    }
  }

  // Everything that can have arrived has, except for the last frame, which may reach beyond the loaded bytes.
  bool is_loaded(std::uint32_t segment, std::uint64_t end) {
    EXPECT_NE(targets_[segment], group_.rank());
    const bool has_crossed = std::all_of(targets_.begin(), targets_.end(), [&](int peer) {
      return peer == group_.rank() || arrived_.at({group_.rank(), peer}) + group_.limits().max_payload > here_;
    });
    if (has_crossed && here_ < bytes_) load_step();
    return end <= here_;
  }

  void note(std::uint32_t segment, std::uint64_t end) {
    auto& known = arrived_.at({sources_[segment], group_.rank()});
    EXPECT_GE(end, known.load());
    known = end;
  }

  Group& group_;
  const std::size_t bytes_, step_;
  Arrived& arrived_;
  Call call_;
  std::vector<int> targets_, sources_;
  std::map<int, std::vector<std::byte>> inputs_, outputs_;
  std::size_t here_ = 0;
};

class CallsInParts : public ::testing::TestWithParam<transport::TransportChoice> {
 protected:
  static Ranks make(const std::string& letters, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    RankOptions options;
    options.islands = layout(letters);
    options.transport = GetParam();
    options.timeout = timeout;
    return Ranks(options);
  }
  static void clear(Arrived& arrived, int size) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) arrived[{from, to}] = 0;
    }
  }
};

// No byte is sent before it is loaded, and loaded bytes do not wait for others.
TEST_P(CallsInParts, FollowTheirBytes) {
  constexpr std::size_t kStep = 700'001;
  for (const std::string letters : {"A", "AB", "ABA"}) {
    auto ranks = make(letters);
    for (const Operation operation : {Operation::kAllToAll, Operation::kGather, Operation::kScatter}) {
      if (letters.size() == 1 && operation != Operation::kAllToAll) continue;  // the root is rank 1
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{20'000}, 3 * kStep + 5}) {
        SCOPED_TRACE(letters + " " + to_string(operation) + " of " + std::to_string(bytes));
        Arrived arrived;
        clear(arrived, ranks.size());
        ranks.run_ok([&](Group& group) { Streamed(group, operation, bytes, kStep, arrived).run(); });
      }
    }
  }
}

TEST_P(CallsInParts, AnInputThatNeverComesIsNamed) {
  auto ranks = make("AB");
  Arrived arrived;
  clear(arrived, 2);
  const auto errors = ranks.run([&](Group& group) {
    Streamed streamed(group, Operation::kAllToAll, 20'000, 20'000, arrived);
    if (group.rank() == 0) {
      streamed.call().progress = std::make_shared<Parts>([](std::uint32_t, std::uint64_t) { return false; });
      streamed.call().timeout = std::chrono::milliseconds(300);
    }
    streamed.run();
  });
  EXPECT_NE(errors[0].find("timed out: waiting for its input to arrive from the device"), std::string::npos)
      << errors[0];
  EXPECT_FALSE(errors[1].empty());
}

TEST_P(CallsInParts, ADeviceThatFailsIsNamed) {
  auto ranks = make("AB");
  Arrived arrived;
  clear(arrived, 2);
  const auto errors = ranks.run([&](Group& group) {
    Streamed streamed(group, Operation::kAllToAll, 20'000, 20'000, arrived);
    if (group.rank() == 0) {
      streamed.call().progress = std::make_shared<Parts>(
          [](std::uint32_t, std::uint64_t) -> bool { throw std::runtime_error("no such device"); });
    }
    streamed.run();
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("no such device"), std::string::npos) << error;
}

TEST_P(CallsInParts, OnlyDirectOperationsComeSo) {
  auto ranks = make("AB");
  std::byte byte{};
  const auto errors = ranks.run([&](Group& group) {
    Call call;
    call.dtype = DataType::kUInt8;
    call.input = call.output = {{&byte, 1}};
    call.progress = std::make_shared<Parts>([](std::uint32_t, std::uint64_t) { return true; });
    group.run(call);
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("all_reduce"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(Links, CallsInParts,
                         ::testing::Values(transport::TransportChoice::kShm, transport::TransportChoice::kTcp),
                         [](const auto& param_info) {
                           return param_info.param == transport::TransportChoice::kShm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace atl::test
