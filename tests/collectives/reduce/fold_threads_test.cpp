// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/fold_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <set>
#include <vector>

namespace atl::collectives {
namespace {

TEST(FoldThreads, EveryByteIsDoneOnce) {
  for (const std::size_t count : {1, 2, 3, 7}) {
    FoldThreads threads(count);
    for (const std::size_t bytes : {0, 1, 64, 65, 32767, 65536, 262144, 262147, 1000003}) {
      std::vector<unsigned char> done(bytes);
      std::atomic<int> calls{0};
      threads.share(bytes, [&](std::size_t begin, std::size_t end) {
        EXPECT_EQ(begin % 64, 0U);
        for (std::size_t i = begin; i < end; ++i) ++done[i];
        ++calls;
      });
      EXPECT_EQ(std::vector<unsigned char>(bytes, 1), done) << count << " threads, " << bytes << " bytes";
      EXPECT_EQ(calls, static_cast<int>(std::clamp<std::size_t>(bytes / 32768, 1, count)));
    }
  }
}

TEST(FoldThreads, SeveralThreadsTakePart) {
  FoldThreads threads(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::latch all(3);  // passed only if three threads are in the body at once
  threads.share(std::size_t{1} << 20, [&](std::size_t, std::size_t) {
    all.arrive_and_wait();
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
}

TEST(FoldThreads, AThreadThatFindsThemBusyWorksAlone) {
  FoldThreads threads(2);
  std::latch inside(2);
  std::latch other_is_done(1);
  std::thread first([&] {
    threads.share(std::size_t{1} << 20, [&](std::size_t, std::size_t) {
      inside.arrive_and_wait();
      other_is_done.wait();
    });
  });
  inside.wait();
  std::size_t ranges = 0;
  threads.share(std::size_t{1} << 20, [&](std::size_t begin, std::size_t end) {
    EXPECT_EQ(begin, 0U);
    EXPECT_EQ(end, std::size_t{1} << 20);
    ++ranges;
  });
  EXPECT_EQ(ranges, 1U);
  other_is_done.count_down();
  first.join();
}

TEST(FoldThreads, TheUsualNumberLeavesACoreForTheNetwork) {
  EXPECT_EQ(usual_fold_threads(1'000'000), 1U);
  EXPECT_LE(usual_fold_threads(1), 4U);
  EXPECT_GE(usual_fold_threads(1), 1U);
  EXPECT_GE(usual_fold_threads(0), 1U);
}

}  // namespace
}  // namespace atl::collectives
