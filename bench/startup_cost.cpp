// SPDX-License-Identifier: Apache-2.0
// Measures the cost of starting a group, by the number of ranks, which are threads of this process.
//   startup_cost RANKS...
// Prints one JSON object per number of ranks: seconds until all groups are made (listeners, meeting through the store),
// seconds of the first all_reduce (it opens the links), of a second one, and of the end. Exits with 1 on an error or a
// wrong result.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/collectives/group/context.h"
#include "atoll/collectives/group/group.h"
#include "tests/support/memory_store.h"

namespace {

using atl::collectives::Call;
using atl::collectives::Context;
using atl::collectives::Group;
using atl::collectives::GroupOptions;

constexpr std::size_t kElements = 1024;
constexpr std::chrono::milliseconds kTimeout{120000};

/// Runs `body` for every rank on a thread of its own; returns the seconds until all are done. Throws the first error.
double on_all_ranks(int ranks, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  if (first) std::rethrow_exception(first);
  return elapsed.count();
}

struct Member {
  std::shared_ptr<Context> context;
  std::unique_ptr<Group> group;
  std::vector<float> values;
};

void make(Member& member, atl::MemoryStore& store, int rank, int ranks) {
  atl::transport::EndpointOptions endpoint;
  endpoint.job = "startup_cost";
  endpoint.name = "rank " + std::to_string(rank);
  endpoint.route_hint = "127.0.0.1";
  endpoint.connect_timeout = kTimeout;
  member.context = std::make_shared<Context>(endpoint);
  GroupOptions options;
  options.rank = rank;
  options.size = ranks;
  options.name = "world";
  options.island = "A";
  options.timeout = kTimeout;
  member.group = std::make_unique<Group>(member.context, store, options);
}

void all_reduce(Member& member, int rank, int ranks) {
  member.values.assign(kElements, static_cast<float>(rank + 1));
  const atl::collectives::Segment segment{reinterpret_cast<std::byte*>(member.values.data()),
                                          kElements * sizeof(float)};
  Call call;
  call.input = {segment};
  call.output = {segment};
  member.group->run(call);
  const auto expected = static_cast<float>(ranks * (ranks + 1) / 2);
  for (const float value : member.values) {
    if (value != expected) throw std::runtime_error("rank " + std::to_string(rank) + ": wrong result");
  }
}

void measure(int ranks) {
  atl::MemoryStore store;
  std::vector<Member> members(static_cast<std::size_t>(ranks));
  const auto member = [&](int rank) -> Member& { return members[static_cast<std::size_t>(rank)]; };
  const double made = on_all_ranks(ranks, [&](int rank) { make(member(rank), store, rank, ranks); });
  const double first = on_all_ranks(ranks, [&](int rank) { all_reduce(member(rank), rank, ranks); });
  const double second = on_all_ranks(ranks, [&](int rank) { all_reduce(member(rank), rank, ranks); });
  std::size_t links = 0;
  for (const Member& one : members) links += one.group->links().size();
  const double ended = on_all_ranks(ranks, [&](int rank) { member(rank).group->shutdown(); });
  std::printf(
      "{\"ranks\": %d, \"make_s\": %.6f, \"first_s\": %.6f, \"second_s\": %.6f, \"end_s\": %.6f, \"links\": %zu}\n",
      ranks, made, first, second, ended, links / 2);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  try {
    for (int index = 1; index < argc; ++index) {
      const int ranks = std::atoi(argv[index]);
      if (ranks < 1) throw std::runtime_error(std::string("invalid number of ranks: ") + argv[index]);
      measure(ranks);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "startup_cost: %s\n", error.what());
    return 1;
  }
  return 0;
}
