// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <thread>

namespace atl::test {
namespace {

std::vector<std::string> on_all_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::string> errors(count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[rank] = *error.what() ? error.what() : "an exception without text";
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace

std::vector<std::string> layout(const std::string& letters) {
  std::vector<std::string> islands;
  for (const char letter : letters) islands.emplace_back(1, letter);
  return islands;
}

Ranks::Ranks(RankOptions options) : options_(std::move(options)) {
  const std::size_t size = options_.islands.size();
  contexts_.resize(size);
  groups_.resize(size);
  const auto errors = on_all_threads(size, [&](std::size_t rank) {
    transport::EndpointOptions endpoint;
    endpoint.job = "test";
    endpoint.name = "rank " + std::to_string(rank);
    endpoint.heartbeat = options_.heartbeat;
    endpoint.transport = options_.transport;
    endpoint.route_hint = "127.0.0.1";
    if (options_.arena_bytes > 0) endpoint.arena = std::make_shared<transport::Arena>(options_.arena_bytes);
    if (!options_.hosts.empty()) endpoint.host = options_.hosts[rank];
    contexts_[rank] = std::make_shared<collectives::Context>(endpoint);
    collectives::GroupOptions group;
    group.rank = static_cast<int>(rank);
    group.size = static_cast<int>(size);
    group.name = "world";
    group.island = options_.islands[rank];
    group.timeout = options_.timeout;
    group.slow_after = options_.slow_after;
    group.trace_folder = options_.trace_folder;
    group.check_data = options_.check_data;
    group.check_values = options_.check_values;
    group.flat_reduce = options_.flat_reduce;
    if (!options_.uplinks.empty()) group.uplink = options_.uplinks[rank];
    groups_[rank] = std::make_unique<collectives::Group>(contexts_[rank], store_, group);
  });
  for (const auto& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
}

Ranks::~Ranks() {
  shut_down();
  on_all_threads(groups_.size(), [&](std::size_t rank) {
    groups_[rank].reset();
    contexts_[rank].reset();
  });
}

std::vector<std::string> Ranks::run(const Body& body) {
  return on_all_threads(groups_.size(), [&](std::size_t rank) {
    if (groups_[rank]) body(*groups_[rank]);
  });
}

void Ranks::run_ok(const Body& body) {
  const auto errors = run(body);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "on rank " << rank;
}

void Ranks::kill(int rank) { context(rank)->endpoint().abort(); }

void Ranks::shut_down() {
  on_all_threads(groups_.size(), [&](std::size_t rank) {
    if (groups_[rank]) groups_[rank]->shutdown();
  });
}

}  // namespace atl::test
