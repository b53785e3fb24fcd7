// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/incoming_model.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/resource.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/infer/serve/served_model.h"
#include "tests/infer/infer_cases.h"

// Uploads of a model while the disk is slow: the test controls the threads.
namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;

constexpr std::size_t kFrame = std::size_t{1} << 18;

class IncomingTest : public testing::Test, protected IncomingModel::Owner, protected ServedModel::Client {
 protected:
  IncomingTest() {
    open_.model = 1;
    open_.graph_bytes = graph_.size();
    open_.weight_bytes = weights_.size();
    const std::string all = graph_ + weights_;
    EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(open_.hash.data()), nullptr, EVP_sha256(),
               nullptr);
  }
  void TearDown() override {
    settle();
    std::filesystem::remove_all(folder_);
  }

  static std::string made_folder() {
    std::string pattern = testing::TempDir() + "atoll-incoming-XXXXXX";
    return ::mkdtemp(pattern.data());
  }
  static ServerOptions options_in(const std::string& folder) {
    ServerOptions options;
    options.cache_folder = folder;
    return options;
  }

  void on_loop(const Loop::Task& task) { loop_.run_and_wait(task); }
  /// Begins or resumes an upload of the model.
  std::unique_ptr<IncomingModel> incoming() {
    IncomingModel::StartedUpload started;
    disk_.run_and_wait([&] {
      started.upload = context_.cache.begin(open_.hash, open_.graph_bytes, open_.weight_bytes);
      ASSERT_TRUE(started.upload) << "the last one has not been released";
      started.needs_graph = started.upload->needs_graph();
      started.weights_from = started.upload->weights_from();
    });
    std::unique_ptr<IncomingModel> made;
    on_loop([&] {
      IncomingModel::Owner& self = *this;
      made = std::make_unique<IncomingModel>(context_, self, started, open_);
    });
    return made;
  }
  /// Waits until everything that was posted has run.
  void settle() {
    disk_.run_and_wait([] {});
    on_loop([] {});
  }
  std::span<const std::byte> weights(std::size_t from, std::size_t count = std::string::npos) const {
    return as_byte_span(weights_).subspan(from, std::min(count, weights_.size() - from));
  }
  /// While it exists, the disk's thread is blocked.
  struct Stuck {
    explicit Stuck(Loop& disk) {
      disk.post([gate = gate] { gate->wait(); });
    }
    ~Stuck() { gate->count_down(); }
    std::shared_ptr<std::latch> gate = std::make_shared<std::latch>(1);
  };
  template <typename Holds>
  void wait_until(const Holds& holds) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 20s, holds));
  }

  void on_written(IncomingModel&) override { ++written_; }
  void on_complete(IncomingModel&) override { ++completed_; }
  void on_unwritable(IncomingModel&, const Error& error) override { errors_.emplace_back(error.what()); }

  void send(const wire::Message& message) override {
    const std::lock_guard lock(mutex_);
    said_.push_back(message);
    changed_.notify_all();
  }
  void forward(std::span<const std::byte>) override {}
  void forward(const wire::FrameHeader&, std::span<const std::byte>, std::shared_ptr<const void>) override {}
  bool may_map_memory() const override { return false; }
  std::size_t queued_bytes() const override { return 0; }
  void pause() override { count_pauses(1); }
  void resume() override { count_pauses(-1); }
  void count_pauses(int change) {
    const std::lock_guard lock(mutex_);
    paused_ += change;
    changed_.notify_all();
  }
  template <typename Kind>
  bool was_said() const {
    return !said_.empty() && std::holds_alternative<Kind>(said_.back());
  }

  const std::string folder_ = made_folder();
  const ServerOptions options_ = options_in(folder_ + "/models");
  const std::string graph_ = R"({"atoll_graph": 1})";
  const std::string weights_ = std::string(3'000'000, 'w');
  wire::Open open_;
  int written_ = 0;
  int completed_ = 0;
  std::vector<std::string> errors_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<wire::Message> said_;
  int paused_ = 0;
  ServerContext context_{options_, loop_, hashing_, disk_};
  Loop loop_{"test-serve"};
  Loop disk_{"test-disk"};
  Loop hashing_{"test-hash"};
};

TEST_F(IncomingTest, ComesToTheDiskInOrder) {
  auto model = incoming();
  on_loop([&] {
    EXPECT_TRUE(model->needs_graph());
    model->take_weights(0, weights(0, kFrame));
    model->take_graph(graph_);
    EXPECT_FALSE(model->needs_graph());
    model->take_weights(kFrame, weights(kFrame));
    EXPECT_EQ(model->weights_from(), weights_.size());
  });
  settle();
  EXPECT_EQ(written_, 2);
  EXPECT_EQ(completed_, 1);
  on_loop([&] {
    EXPECT_TRUE(model->is_complete());
    EXPECT_EQ(model->queued_bytes(), 0U);
    model->take_upload()->finish();
    EXPECT_TRUE(context_.cache.has(open_.hash));
    model.reset();
  });
}

TEST_F(IncomingTest, RefusesAtOnceWhatDoesNotFollow) {
  auto model = incoming();
  const Stuck stuck(disk_);
  on_loop([&] {
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { model->take_weights(1, weights(1, 5)); }), "");
    model->take_weights(0, weights(0, 5));
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { model->take_weights(0, weights(0, 5)); }), "");
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { model->take_weights(5, weights(0)); }), "") << "too many";
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { model->take_graph("{}"); }), "");
    model->take_graph(graph_);
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { model->take_graph(graph_); }), "");
    EXPECT_EQ(model->queued_bytes(), 5 + graph_.size());
    EXPECT_FALSE(model->is_complete());
    model.reset();
  });
}

TEST_F(IncomingTest, WhatHasComeIsKeptWhenItsClientLeaves) {
  {
    auto model = incoming();
    const Stuck stuck(disk_);
    on_loop([&] {
      model->take_graph(graph_);
      model->take_weights(0, weights(0, kFrame));
      model->take_weights(kFrame, weights(kFrame, 77));
      model.reset();
    });
    EXPECT_GT(context_.queued_for_disk, kFrame);
  }
  auto again = incoming();
  on_loop([&] {
    EXPECT_EQ(context_.queued_for_disk, 0U);
    EXPECT_FALSE(again->needs_graph());
    ASSERT_EQ(again->weights_from(), kFrame + 77);
    again->take_weights(kFrame + 77, weights(kFrame + 77));
  });
  settle();
  ASSERT_EQ(completed_, 1);
  on_loop([&] {
    again->take_upload()->finish();
    again.reset();
  });
}

TEST_F(IncomingTest, BehindAFullDiskNothingIsWritten) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  auto model = incoming();
  const rlimit small{kFrame + 1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  on_loop([&] {
    model->take_graph(graph_);
    for (std::size_t from = 0; from < 4 * kFrame; from += kFrame) model->take_weights(from, weights(from, kFrame));
  });
  settle();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
  ASSERT_EQ(errors_.size(), 1U);
  EXPECT_NE(errors_.front().find("--cache"), std::string::npos) << errors_.front();
  EXPECT_EQ(written_, 2);
  on_loop([&] { model.reset(); });
  auto again = incoming();
  on_loop([&] {
    const std::uint64_t from = again->weights_from();
    EXPECT_GE(from, kFrame);
    EXPECT_LE(from, kFrame + 1000);
    again->take_weights(from, weights(from));
  });
  settle();
  ASSERT_EQ(completed_, 1);
  on_loop([&] {
    again->take_upload()->finish();  // otherwise its hash would differ
    again.reset();
  });
}

// The same through a connection's model.
TEST_F(IncomingTest, AClientThatIsFasterThanTheDiskHasToWait) {
  ServedModel::Client& self = *this;
  auto model = std::make_unique<ServedModel>(context_, self, open_);
  on_loop([&] { model->begin(); });
  wait_until([&] { return was_said<wire::Need>(); });
  std::size_t there = 0;
  {
    const Stuck stuck(disk_);
    on_loop([&] {
      model->take(wire::GraphText{1, graph_});
      while (paused_ == 0 && there < weights_.size()) {
        const auto part = weights(there, kFrame);
        model->take_weights(there, part);
        there += part.size();
      }
      EXPECT_EQ(paused_, 1);
      EXPECT_LT(there, weights_.size() / 2);
      model->on_tick(Clock::now() - 1s);
      EXPECT_FALSE(was_said<wire::Ping>());
      model->on_tick(Clock::now() + 1s);
      EXPECT_TRUE(was_said<wire::Ping>()) << "the client learns that the server is alive";
    });
  }
  wait_until([&] { return paused_ == 0; });
  on_loop([&] { model.reset(); });
  EXPECT_EQ(paused_, 0);
}

TEST_F(IncomingTest, ManyLittlePartsAreTooMuchForTheDiskToo) {
  ServedModel::Client& self = *this;
  auto model = std::make_unique<ServedModel>(context_, self, open_);
  on_loop([&] { model->begin(); });
  wait_until([&] { return was_said<wire::Need>(); });
  {
    const Stuck stuck(disk_);
    on_loop([&] {
      for (std::size_t there = 0; paused_ == 0 && there < 10'000; ++there) {
        model->take_weights(there, weights(there, 1));
      }
      EXPECT_EQ(paused_, 1);
    });
  }
  wait_until([&] { return paused_ == 0; });
  on_loop([&] { model.reset(); });
}

TEST_F(IncomingTest, ADiskThatTakesNothingEndsTheUpload) {
  ServedModel::Client& self = *this;
  auto model = std::make_unique<ServedModel>(context_, self, open_);
  on_loop([&] { model->begin(); });
  wait_until([&] { return was_said<wire::Need>(); });
  const Stuck stuck(disk_);
  on_loop([&] {
    for (std::size_t from = 0; paused_ == 0; from += kFrame) model->take_weights(from, weights(from, kFrame));
    model->on_tick(Clock::now() + options_.upload_limit + 1s);
    ASSERT_TRUE(was_said<wire::Failed>());
    EXPECT_NE(std::get<wire::Failed>(said_.back()).text.find("disk"), std::string::npos);
    EXPECT_EQ(paused_, 0) << "its other models go on";
    model.reset();
  });
}

TEST_F(IncomingTest, ADiskThatFindsNothingIsNotWaitedForForEver) {
  ServedModel::Client& self = *this;
  auto model = std::make_unique<ServedModel>(context_, self, open_);
  {
    const Stuck stuck(disk_);
    on_loop([&] {
      model->begin();
      model->on_tick(Clock::now() + options_.start_limit - 1s);
      EXPECT_TRUE(said_.empty());
      model->on_tick(Clock::now() + options_.start_limit + 1s);
      EXPECT_TRUE(was_said<wire::Failed>());
    });
  }
  settle();
  EXPECT_TRUE(was_said<wire::Failed>()) << "a later result of the disk is dropped";
  on_loop([&] {
    model.reset();
    EXPECT_TRUE(context_.waiting.empty());
  });
  auto again = incoming();  // the upload that it had started is over
  on_loop([&] { again.reset(); });
}

}  // namespace
}  // namespace atl::infer
