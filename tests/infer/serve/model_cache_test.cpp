// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/model_cache.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/infer/bundle/bundle.h"

namespace atl::infer {
namespace {

namespace fs = std::filesystem;

ModelHash hash_of(const std::string& text) {
  ModelHash hash{};
  EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(hash.data()), nullptr, EVP_sha256(), nullptr);
  return hash;
}

class ModelCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "atoll-cache-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder() const { return folder_ + "/models"; }
  const std::string graph_ = R"({"atoll_graph": 1})";
  const std::string weights_ = std::string(5000, 'w');

  void put(ModelCache& cache, const std::string& weights) {
    auto upload = cache.begin(hash_of(graph_ + weights), graph_.size(), weights.size());
    upload->add_graph(graph_);
    upload->add_weights(0, as_byte_span(weights));
    ASSERT_FALSE(upload->needs_graph());
    ASSERT_EQ(upload->weights_from(), weights.size());
    upload->finish();
  }

 private:
  std::string folder_;
};

template <typename Body>
ErrorKind kind_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST_F(ModelCacheTest, KeepsWhatWasSent) {
  const ModelHash hash = hash_of(graph_ + weights_);
  {
    ModelCache cache(folder(), 1 << 20);
    EXPECT_FALSE(cache.has(hash));
    put(cache, weights_);
  }
  ModelCache cache(folder(), 1 << 20);  // the server has been restarted
  ASSERT_TRUE(cache.has(hash));
  // A client that checked before the model existed must not upload it again.
  EXPECT_EQ(cache.begin(hash, graph_.size(), weights_.size()), nullptr);
  const ModelCache::Model model = cache.open(hash);
  EXPECT_EQ(model.graph, graph_);
  std::string read(weights_.size() + 1, ' ');
  EXPECT_EQ(::read(model.weights.get(), read.data(), read.size()), static_cast<ssize_t>(weights_.size()));
  struct stat status {};
  ASSERT_EQ(::stat(folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
}

TEST_F(ModelCacheTest, UploadsGoOnWhereTheyBroke) {
  const ModelHash hash = hash_of(graph_ + weights_);
  {
    ModelCache cache(folder(), 1 << 20);
    auto upload = cache.begin(hash, graph_.size(), weights_.size());
    EXPECT_TRUE(upload->needs_graph());
    EXPECT_EQ(upload->weights_from(), 0u);
    upload->add_graph(graph_);
    upload->add_weights(0, as_byte_span(weights_).first(1234));
    EXPECT_EQ(cache.begin(hash, graph_.size(), weights_.size()), nullptr);  // one at a time
  }
  ModelCache cache(folder(), 1 << 20);
  auto upload = cache.begin(hash, graph_.size(), weights_.size());
  EXPECT_FALSE(upload->needs_graph());
  ASSERT_EQ(upload->weights_from(), 1234u);
  upload->add_weights(1234, as_byte_span(weights_).subspan(1234));
  upload->finish();
  EXPECT_TRUE(cache.has(hash));
}

TEST_F(ModelCacheTest, WrongBytesAreRefusedAndForgotten) {
  ModelCache cache(folder(), 1 << 20);
  const ModelHash hash = hash_of("something else");
  {
    auto upload = cache.begin(hash, graph_.size(), weights_.size());
    upload->add_graph(graph_);
    upload->add_weights(0, as_byte_span(weights_));
    EXPECT_EQ(kind_of([&] { upload->finish(); }), ErrorKind::kRefused);
  }
  EXPECT_FALSE(cache.has(hash));
  EXPECT_EQ(cache.begin(hash, graph_.size(), weights_.size())->weights_from(), 0u);
}

TEST_F(ModelCacheTest, OutOfOrderIsAnError) {
  ModelCache cache(folder(), 1 << 20);
  auto upload = cache.begin(hash_of("x"), graph_.size(), 100);
  EXPECT_EQ(kind_of([&] { upload->add_weights(1, as_byte_span("a")); }), ErrorKind::kProtocol);
  EXPECT_EQ(kind_of([&] { upload->add_weights(0, as_byte_span(weights_)); }), ErrorKind::kProtocol);
  EXPECT_EQ(kind_of([&] { upload->add_graph("{}"); }), ErrorKind::kProtocol);
  upload->add_graph(graph_);
  EXPECT_EQ(kind_of([&] { upload->add_graph(graph_); }), ErrorKind::kProtocol);
  EXPECT_EQ(upload->weights_from(), 0u);
}

TEST_F(ModelCacheTest, TheLongestUnusedModelsMakeRoom) {
  ModelCache cache(folder(), 12'000);
  const std::string first(5000, '1');
  const std::string second(5000, '2');
  const std::string third(5000, '3');
  put(cache, first);
  put(cache, second);
  // File times have a limited resolution.
  const fs::path second_path = folder() + "/" + text_of(hash_of(graph_ + second));
  fs::last_write_time(second_path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const ModelCache::Model kept = cache.open(hash_of(graph_ + first));
  put(cache, third);
  EXPECT_TRUE(cache.has(hash_of(graph_ + first)));
  EXPECT_FALSE(cache.has(hash_of(graph_ + second)));
  EXPECT_TRUE(cache.has(hash_of(graph_ + third)));
}

TEST_F(ModelCacheTest, WhatOthersPutIntoTheFolderStays) {
  ModelCache cache(folder(), 12'000);
  fs::create_directories(folder() + "/photographs/2026");
  std::ofstream(folder() + "/photographs/graph.json") << std::string(50'000, 'p');
  fs::last_write_time(folder() + "/photographs", fs::file_time_type::clock::now() - std::chrono::hours(9));
  put(cache, std::string(5000, '1'));
  put(cache, std::string(5000, '2'));
  put(cache, std::string(5000, '3'));
  EXPECT_TRUE(fs::exists(folder() + "/photographs/2026"));
  EXPECT_FALSE(cache.has(hash_of(graph_ + std::string(5000, '1'))));
}

TEST_F(ModelCacheTest, UploadsTogetherKeepTheLimit) {
  ModelCache cache(folder(), 10'000);
  const auto first = cache.begin(hash_of("1"), 100, 6000);
  EXPECT_EQ(kind_of([&] { cache.begin(hash_of("2"), 100, 6000); }), ErrorKind::kUnavailable);
  EXPECT_NE(cache.begin(hash_of("3"), 100, 3000), nullptr);
}

TEST_F(ModelCacheTest, AnUploadMayUseTheRoomOfItsOwnPart) {
  ModelCache cache(folder(), 8000);
  const ModelHash hash = hash_of(graph_ + weights_);
  {
    auto upload = cache.begin(hash, graph_.size(), weights_.size());
    upload->add_graph(graph_);
    upload->add_weights(0, as_byte_span(weights_).first(4000));
  }
  EXPECT_EQ(cache.begin(hash, graph_.size(), weights_.size())->weights_from(), 4000u);
}

TEST_F(ModelCacheTest, WhatNeverCameLeavesNothing) {
  ModelCache cache(folder(), 1 << 20);
  cache.begin(hash_of("x"), 10, 10).reset();
  EXPECT_TRUE(fs::is_empty(folder()));
}

TEST_F(ModelCacheTest, HalfAModelIsReplaced) {
  ModelCache cache(folder(), 1 << 20);
  const ModelHash hash = hash_of(graph_ + weights_);
  fs::create_directories(folder() + "/" + text_of(hash));
  std::ofstream(folder() + "/" + text_of(hash) + "/graph.json") << graph_;
  EXPECT_FALSE(cache.has(hash));
  put(cache, weights_);
  EXPECT_TRUE(cache.has(hash));
}

TEST_F(ModelCacheTest, ATooLargeModelIsRefused) {
  ModelCache cache(folder(), 1000);
  EXPECT_EQ(kind_of([&] { cache.begin(hash_of("x"), 10, 1000); }), ErrorKind::kRefused);
}

TEST_F(ModelCacheTest, AFullDiskIsAClearErrorAndTheRestIsSentLater) {
  ModelCache cache(folder(), 1 << 20);
  const ModelHash hash = hash_of(graph_ + weights_);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  {
    auto upload = cache.begin(hash, graph_.size(), weights_.size());
    upload->add_graph(graph_);
    const rlimit small{2000, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const ErrorKind kind = kind_of([&] { upload->add_weights(0, as_byte_span(weights_)); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(kind, ErrorKind::kUnavailable);
  }
  std::signal(SIGXFSZ, old);
  auto upload = cache.begin(hash, graph_.size(), weights_.size());
  const std::uint64_t from = upload->weights_from();
  EXPECT_LE(from, 2000u);
  upload->add_weights(from, as_byte_span(weights_).subspan(from));
  upload->finish();
  EXPECT_TRUE(cache.has(hash));
}

TEST_F(ModelCacheTest, AFolderThatCannotBeIsNamed) {
  try {
    ModelCache cache("/proc/atoll-models", 1000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("/proc/atoll-models"), std::string::npos);
  }
}

}  // namespace
}  // namespace atl::infer
