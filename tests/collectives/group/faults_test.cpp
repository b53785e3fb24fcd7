// SPDX-License-Identifier: Apache-2.0
// What every rank learns when one of them makes an error, leaves, dies or is silent.
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <nlohmann/json.hpp>

#include "tests/collectives/group/calls.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using std::chrono::milliseconds;

ErrorKind kind_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kInternal;
}

double seconds_of(const std::function<void()>& body) {
  const auto started = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - started).count();
}

void expect_each_contains(const std::vector<std::string>& errors, const std::vector<std::string>& needles) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    for (const auto& needle : needles)
      EXPECT_NE(errors[rank].find(needle), std::string::npos) << "rank " << rank << " said: " << errors[rank];
  }
}

struct Wrong {
  const char* name;
  std::function<void(Group&, std::vector<float>&)> odd_rank;
  std::vector<std::string> needles;
};

class Mismatch : public ::testing::TestWithParam<Wrong> {};

// Proves C-4.
TEST_P(Mismatch, IsNamedOnAllRanks) {
  for (const auto* letters : {"AA", "AAA", "ABA"}) {
    RankOptions options;
    options.islands = layout(letters);
    Ranks ranks(options);
    const auto errors = ranks.run([&](Group& group) {
      std::vector<float> data(100, 1.0f);
      group.run(all_reduce(data));
      if (group.rank() == 1) {
        GetParam().odd_rank(group, data);
      } else {
        group.run(all_reduce(data));
      }
      group.barrier();  // ranks that needed nothing from the odd one learn of it here
    });
    expect_each_contains(errors, GetParam().needles);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mismatch,
                         ::testing::Values(Wrong{"Size",
                                                 [](Group& group, std::vector<float>& data) {
                                                   data.resize(101);
                                                   group.run(all_reduce(data));
                                                 },
                                                 {"all_reduce #1", "100 elements", "101 elements", "rank 1"}},
                                           Wrong{"Dtype",
                                                 [](Group& group, std::vector<float>& data) {
                                                   Call call = all_reduce(data);
                                                   call.dtype = DataType::kInt32;
                                                   group.run(call);
                                                 },
                                                 {"all_reduce #1", "float32", "int32", "rank 1"}},
                                           Wrong{"Reduction",
                                                 [](Group& group, std::vector<float>& data) {
                                                   Call call = all_reduce(data);
                                                   call.reduce_op = ReduceOp::kMax;
                                                   group.run(call);
                                                 },
                                                 {"all_reduce #1", "sum", "max", "rank 1"}},
                                           Wrong{"Operation",
                                                 [](Group& group, std::vector<float>& data) {
                                                   Call call = all_reduce(data);
                                                   call.operation = Operation::kBroadcast;
                                                   call.root = 0;
                                                   group.run(call);
                                                 },
                                                 {"#1", "rank 1"}},
                                           Wrong{"Order",
                                                 [](Group& group, std::vector<float>& data) {
                                                   group.barrier();
                                                   group.run(all_reduce(data));
                                                 },
                                                 {"#1", "barrier", "rank 1"}}),
                         [](const auto& param_info) { return param_info.param.name; });

// No rank of a broadcast with two roots waits for a frame that does not come: the frames that no step takes reveal it.
// Proves C-4.
TEST(Faults, DifferentRootsAreNamedOnAllRanks) {
  for (const auto* letters : {"AA", "AAA", "ABA", "ABB"}) {
    SCOPED_TRACE(letters);
    RankOptions options;
    options.islands = layout(letters);
    Ranks ranks(options);
    const auto errors = ranks.run([](Group& group) {
      std::vector<float> data(100, 1.0f);
      group.barrier();
      Call call = all_reduce(data);
      call.operation = Operation::kBroadcast;
      call.root = group.rank() == 1 ? 1 : 0;
      group.run(call);
      for (int i = 0; i < 3; ++i) group.barrier();
    });
    expect_each_contains(errors, {"broadcast #1", "root"});
  }
}

// Proves C-5.
TEST(Faults, DeathIsAnExceptionEverywhere) {
  for (const auto choice : {transport::TransportChoice::kShm, transport::TransportChoice::kTcp}) {
    RankOptions options;
    options.islands = layout("ABAC");
    options.transport = choice;
    Ranks ranks(options);
    ranks.run_ok([](Group& group) {
      std::vector<float> data(1 << 20, 1.0f);
      group.run(all_reduce(data));
    });
    std::vector<std::string> errors;
    const double seconds = seconds_of([&] {
      errors = ranks.run([&](Group& group) {
        if (group.rank() == 2) return ranks.kill(2);
        std::vector<float> data(1 << 20, 1.0f);
        for (;;) group.run(all_reduce(data));
      });
    });
    EXPECT_LT(seconds, 2.0);
    errors.erase(errors.begin() + 2);
    expect_each_contains(errors, {"rank 2", "all_reduce"});
  }
}

// Proves C-7.
TEST(Faults, TimeoutNamesTheMissingRank) {
  RankOptions options;
  options.islands = layout("AAA");
  Ranks ranks(options);
  const auto errors = ranks.run([](Group& group) {
    std::vector<float> data(10, 1.0f);
    group.run(all_reduce(data));
    if (group.rank() == 2) return;
    group.run(all_reduce(data, milliseconds(300)));
  });
  EXPECT_NE(errors[0].find("timed out"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("timed out"), std::string::npos) << errors[1];
  EXPECT_NE((errors[0] + errors[1]).find("rank 2"), std::string::npos);
  EXPECT_TRUE(ranks.group(0).error() && ranks.group(1).error());
}

// Proves C-6.
TEST(Faults, AbortWakesEveryWaiterOnEveryRank) {
  RankOptions options;
  options.islands = layout("AABB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  std::latch waiting(3);
  const double seconds = seconds_of([&] {
    const auto errors = ranks.run([&](Group& group) {
      if (group.rank() == 3) {
        waiting.wait();
        group.abort("because");
        group.barrier();
      } else {
        waiting.count_down();
        group.barrier();
      }
    });
    expect_each_contains(errors, {"because", "rank 3"});
  });
  EXPECT_LT(seconds, 2.0);
}

TEST(Faults, LeavingInOrderIsNamedWhenSomebodyStillWaits) {
  RankOptions options;
  options.islands = layout("AA");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  const auto errors = ranks.run([](Group& group) {
    if (group.rank() == 1) {
      group.shutdown();
    } else {
      group.barrier();
    }
  });
  EXPECT_NE(errors[0].find("rank 1 has left"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}

// Proves C-8.
TEST(Faults, BadCallsAreRefusedAndTheGroupGoesOn) {
  RankOptions options;
  options.islands = layout("AA");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) {
    std::vector<float> data(4, 1.0f);
    Call call = all_reduce(data);
    call.reduce_op = ReduceOp::kBxor;
    EXPECT_EQ(kind_of([&] { group.run(call); }), ErrorKind::kInvalidArgument);
    call = all_reduce(data);
    call.operation = Operation::kBroadcast;
    call.root = 7;
    EXPECT_EQ(kind_of([&] { group.run(call); }), ErrorKind::kInvalidArgument);
    EXPECT_EQ(kind_of([&] { group.send(group.rank(), 0, DataType::kUInt8, {}, {}, [](std::exception_ptr) {}); }),
              ErrorKind::kInvalidArgument);
    group.run(all_reduce(data));
    EXPECT_EQ(data[3], 2.0f);
  });
}

// Proves C-7.
TEST(Faults, MonitoredBarrierNamesWhoIsMissing) {
  RankOptions options;
  options.islands = layout("AABB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.monitored_barrier(milliseconds(10000), false); });
  const auto errors = ranks.run([](Group& group) {
    if (group.rank() == 1 || group.rank() == 3) return;
    group.monitored_barrier(milliseconds(2000), true);
  });
  EXPECT_NE(errors[0].find("rank 1, 3 did not reach"), std::string::npos) << errors[0];
  EXPECT_NE(errors[2].find("rank 1, 3 did not reach"), std::string::npos) << errors[2];
}

TEST(Faults, MissingRankAtTheMeetingIsNamed) {
  MemoryStore store;
  std::vector<std::future<std::string>> results;
  for (const int rank : {0, 1, 3}) {
    results.push_back(std::async(std::launch::async, [&store, rank]() -> std::string {
      transport::EndpointOptions endpoint;
      endpoint.job = "test";
      auto context = std::make_shared<Context>(endpoint);
      GroupOptions options;
      options.rank = rank;
      options.size = 4;
      options.name = "world";
      options.timeout = milliseconds(2000);
      try {
        const Group group(context, store, options);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    }));
  }
  for (auto& result : results) {
    const auto text = result.get();
    EXPECT_NE(text.find("rank 2 did not join"), std::string::npos) << text;
  }
}

TEST(Faults, DumpTellsTheLastOperations) {
  RankOptions options;
  options.islands = layout("AB");
  Ranks ranks(options);
  ranks.run([](Group& group) {
    std::vector<float> data(5, 1.0f);
    group.run(all_reduce(data));
    group.barrier();
    if (group.rank() == 1) group.abort("enough");
    group.barrier();
  });
  const auto dump = nlohmann::json::parse(ranks.group(0).dump_json());
  EXPECT_EQ(dump["operations"][0]["operation"], "all_reduce");
  EXPECT_EQ(dump["operations"][0]["state"], "completed");
  EXPECT_EQ(dump["operations"][0]["bytes"], 20);
  EXPECT_EQ(dump["error"]["kind"], "aborted");
  EXPECT_EQ(dump["islands"].size(), 2u);
}

}  // namespace
}  // namespace atl::test
