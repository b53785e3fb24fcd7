// SPDX-License-Identifier: Apache-2.0
// The fuzz targets of plans, rows, files and addresses with their seeds, as they are and changed at random: crashes and
// broken promises abort the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/bundle_target.h"
#include "tests/fuzz/division_target.h"
#include "tests/fuzz/host_port_target.h"
#include "tests/fuzz/plan_requests_target.h"
#include "tests/fuzz/saved_json_target.h"
#include "tests/infer/wire/cases.h"

namespace atl::infer {
namespace {

using test::ByteVector;

std::vector<ByteVector> seeds_of(const std::string& target) {
  const auto tests = std::filesystem::path(ATOLL_TESTS_FOLDER);
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(tests / "fuzz" / "seeds" / target)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ByteVector> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ByteVector& seed = seeds.emplace_back(text.size());
    std::memcpy(seed.data(), text.data(), text.size());
  }
  return seeds;
}

std::string text_of_bytes(const ByteVector& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// `genuine` of the seeds are used unchanged, so that mutations start from valid input.
template <class Target>
void run(const std::string& name, int rounds, int genuine, const Target& target) {
  const std::vector<ByteVector> seeds = seeds_of(name);
  int taken = 0;
  for (const ByteVector& seed : seeds) taken += target(seed) ? 1 : 0;
  EXPECT_EQ(taken, genuine);
  test::Dice dice(61);
  int refused = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto place = static_cast<std::size_t>(dice.integer(0, static_cast<std::int64_t>(seeds.size()) - 1));
    refused += target(test::mutated(dice, seeds[place])) ? 0 : 1;
  }
  EXPECT_GT(refused, rounds / 20);
}

TEST(MutatedFiles, PlansOfClients) {
  run("division", 20'000, 6, [](const ByteVector& bytes) { return fuzz::division(bytes); });
}

TEST(MutatedFiles, RowsOfClients) {
  run("arrivals", 20'000, 1, [](const ByteVector& bytes) { return fuzz::arrivals(bytes); });
}

TEST(MutatedFiles, Bundles) {
  run("bundle", 10'000, 2, [](const ByteVector& bytes) { return fuzz::bundle(bytes); });
}

TEST(MutatedFiles, Profiles) {
  run("saved_json", 10'000, 2, [](const ByteVector& bytes) { return fuzz::saved_json(text_of_bytes(bytes)); });
}

TEST(MutatedFiles, FilesOfThePlanner) {
  run("plan_files", 10'000, 4, [](const ByteVector& bytes) { return fuzz::plan_files(text_of_bytes(bytes)); });
}

TEST(MutatedFiles, WhatRanksSayOfThemselves) {
  run("plan_requests", 10'000, 7, [](const ByteVector& bytes) { return fuzz::plan_requests(text_of_bytes(bytes)); });
}

TEST(MutatedFiles, Addresses) {
  run("host_port", 20'000, 3, [](const ByteVector& bytes) { return fuzz::host_port(text_of_bytes(bytes)); });
}

}  // namespace
}  // namespace atl::infer
