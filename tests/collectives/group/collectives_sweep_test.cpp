// SPDX-License-Identifier: Apache-2.0
// Every operation on real endpoints with threads as ranks, over layouts, dtypes, reductions and sizes, against float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/collectives/group/buffers.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

struct SweepCase {
  Operation operation;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 1;  // elements of a segment
  int root = 0;
  bool in_place = true;
};

std::string name_of(const SweepCase& c) {
  return std::string(to_string(c.operation)) + " " + to_string(c.dtype) + " " + to_string(c.op) + " count " +
         std::to_string(c.count) + " root " + std::to_string(c.root) + (c.in_place ? " in place" : "");
}

constexpr double kFactor = 2.0;

std::vector<double> contribution(const SweepCase& c, int rank, std::size_t count, std::size_t from = 0) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(c.op, c.dtype, rank, from + i);
  return values;
}

std::vector<double> reduced(const SweepCase& c, int size, std::size_t count, std::size_t from = 0) {
  const double factor = c.op == ReduceOp::kPremulSum ? kFactor : 1.0;
  std::vector<double> sum = contribution(c, 0, count, from);
  for (double& v : sum) v = c.dtype == DataType::kBool ? v : v * factor;
  for (int rank = 1; rank < size; ++rank) {
    const auto values = contribution(c, rank, count, from);
    for (std::size_t i = 0; i < count; ++i)
      sum[i] = combine(c.op, c.dtype, sum[i], c.dtype == DataType::kBool ? values[i] : values[i] * factor);
  }
  const bool real = c.dtype <= DataType::kFloat8E5M2 || c.dtype >= DataType::kComplex64;
  if (c.op == ReduceOp::kAvg && c.dtype != DataType::kBool) {
    for (double& v : sum) v = real ? v / size : std::trunc(v / size);
  }
  return sum;
}

// Different sizes per rank, zeros included.
std::size_t part(const SweepCase& c, int rank) {
  return rank % 3 == 2 ? 0 : c.count + static_cast<std::size_t>(rank) % 3;
}
std::size_t pair_part(const SweepCase& c, int from, int to) {
  return (from + 2 * to) % 4 == 3 ? 0 : c.count + static_cast<std::size_t>(from + to) % 2;
}

void expect_values(const SweepCase& c, int rank, const Segment& got, const std::vector<double>& want, double slack) {
  const auto values = decode(c.dtype, got.data, got.bytes / size_of(c.dtype));
  ASSERT_EQ(values.size(), want.size()) << name_of(c);
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(values[i], want[i], slack) << name_of(c) << " rank " << rank << " element " << i;
  }
}

std::vector<std::byte> run_reducing(Group& group, const SweepCase& c, Buffers&& buffers) {
  const int size = group.size();
  const int rank = group.rank();
  Call call;
  call.operation = c.operation;
  call.dtype = c.dtype;
  call.reduce_op = c.op;
  call.factor = kFactor;
  const double slack = tolerance(c.dtype, size) * (c.op == ReduceOp::kPremulSum ? kFactor : 1);
  if (c.operation == Operation::kReduceScatter) {
    std::vector<std::vector<std::byte>> inputs;
    std::size_t from = 0;
    std::size_t my_from = 0;
    for (int r = 0; r < size; ++r) {
      inputs.push_back(encode(c.dtype, contribution(c, rank, part(c, r), from)));
      if (r == rank) my_from = from;
      from += part(c, r);
    }
    call.input = buffers.add(std::move(inputs));
    call.output = c.in_place ? std::vector{call.input[static_cast<std::size_t>(rank)]}
                             : buffers.add({std::vector<std::byte>(part(c, rank) * size_of(c.dtype))});
    group.run(call);
    expect_values(c, rank, call.output[0], reduced(c, size, part(c, rank), my_from), slack);
    return {};
  }
  if (c.operation == Operation::kReduce) call.root = c.root;
  call.input = buffers.add({encode(c.dtype, contribution(c, rank, c.count))});
  const bool has_output = c.operation == Operation::kAllReduce || rank == c.root;
  if (has_output) call.output = c.in_place ? call.input : buffers.add({std::vector<std::byte>(call.input[0].bytes)});
  group.run(call);
  if (!has_output) return {};
  expect_values(c, rank, call.output[0], reduced(c, size, c.count), slack);
  return {call.output[0].data, call.output[0].data + call.output[0].bytes};
}

void run_moving(Group& group, const SweepCase& c, Buffers&& buffers) {
  const int size = group.size();
  const int rank = group.rank();
  const auto bytes = [&](std::size_t count) { return std::vector<std::byte>(count * size_of(c.dtype)); };
  const auto data = [&](int r, std::size_t count, std::size_t from = 0) {
    return encode(c.dtype, contribution(c, r, count, from));
  };
  Call call;
  call.operation = c.operation;
  call.dtype = c.dtype;
  if (c.operation == Operation::kBroadcast) {
    call.root = c.root;
    call.input = call.output = buffers.add({rank == c.root ? data(rank, c.count) : bytes(c.count)});
    group.run(call);
    expect_values(c, rank, call.output[0], contribution(c, c.root, c.count), 0);
  } else if (c.operation == Operation::kAllGather || c.operation == Operation::kGather) {
    if (c.operation == Operation::kGather) call.root = c.root;
    std::vector<std::vector<std::byte>> outputs;
    for (int r = 0; r < size && (c.operation == Operation::kAllGather || rank == c.root); ++r)
      outputs.push_back(bytes(part(c, r)));
    call.output = buffers.add(std::move(outputs));
    call.input = buffers.add({data(rank, part(c, rank))});
    if (c.in_place && !call.output.empty()) {
      auto& own = call.output[static_cast<std::size_t>(rank)];
      if (own.bytes > 0) std::memcpy(own.data, call.input[0].data, own.bytes);
      call.input[0] = own;
    }
    group.run(call);
    for (std::size_t r = 0; r < call.output.size(); ++r) {
      expect_values(c, rank, call.output[r], contribution(c, static_cast<int>(r), part(c, static_cast<int>(r))), 0);
    }
  } else if (c.operation == Operation::kScatter) {
    call.root = c.root;
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r < size && rank == c.root; ++r)
      inputs.push_back(data(c.root, part(c, r), static_cast<std::size_t>(r)));
    call.input = buffers.add(std::move(inputs));
    call.output = buffers.add({bytes(part(c, rank))});
    group.run(call);
    expect_values(c, rank, call.output[0], contribution(c, c.root, part(c, rank), static_cast<std::size_t>(rank)), 0);
  } else {
    std::vector<std::vector<std::byte>> inputs;
    std::vector<std::vector<std::byte>> outputs;
    for (int r = 0; r < size; ++r) {
      inputs.push_back(data(rank, pair_part(c, rank, r), static_cast<std::size_t>(r) * 1000));
      outputs.push_back(bytes(pair_part(c, r, rank)));
    }
    call.input = buffers.add(std::move(inputs));
    call.output = buffers.add(std::move(outputs));
    group.run(call);
    for (int r = 0; r < size; ++r) {
      expect_values(c, rank, call.output[static_cast<std::size_t>(r)],
                    contribution(c, r, pair_part(c, r, rank), static_cast<std::size_t>(rank) * 1000), 0);
    }
  }
}

// Runs the cases one after another on all ranks; all_reduce results must have the same bits everywhere.
void run_cases(Ranks& ranks, const std::vector<SweepCase>& cases, InArena where = InArena::kNone) {
  std::vector<std::vector<std::vector<std::byte>>> results(static_cast<std::size_t>(ranks.size()));
  ranks.run_ok([&](Group& group) {
    auto& mine = results[static_cast<std::size_t>(group.rank())];
    for (const SweepCase& c : cases) {
      std::vector<std::byte> result;
      if (c.operation == Operation::kAllReduce || c.operation == Operation::kReduce ||
          c.operation == Operation::kReduceScatter) {
        result = run_reducing(group, c, {ranks, group.rank(), where});
      } else if (c.operation == Operation::kBarrier) {
        group.barrier();
      } else {
        run_moving(group, c, {ranks, group.rank(), where});
      }
      mine.push_back(c.operation == Operation::kAllReduce ? result : std::vector<std::byte>{});
    }
  });
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].size(), results[0].size());
      if (i < results[0].size() && i < results[static_cast<std::size_t>(rank)].size()) {
        EXPECT_TRUE(results[static_cast<std::size_t>(rank)][i] == results[0][i])
            << name_of(cases[i]) << " differs between ranks 0 and " << rank;
      }
    }
  }
}

constexpr Operation kMoving[] = {Operation::kAllGather, Operation::kBroadcast, Operation::kGather, Operation::kScatter,
                                 Operation::kAllToAll};
constexpr Operation kReducing[] = {Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce};

std::vector<SweepCase> every_operation(int size, const std::vector<std::size_t>& counts) {
  std::vector<SweepCase> cases;
  int turn = 0;
  for (const std::size_t count : counts) {
    for (const Operation operation : kReducing) {
      for (const bool in_place : {true, false})
        cases.push_back({operation, DataType::kFloat32, ReduceOp::kSum, count, turn++ % size, in_place});
    }
    for (const Operation operation : kMoving)
      cases.push_back({operation, DataType::kInt32, ReduceOp::kSum, count, turn++ % size, turn % 2 == 0});
    cases.push_back({Operation::kBarrier});
  }
  return cases;
}

std::vector<SweepCase> every_reduction(const std::vector<std::size_t>& counts) {
  std::vector<SweepCase> cases;
  for (int d = 0; d < kDataTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DataType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!is_supported(op, dtype)) continue;
      if (op == ReduceOp::kPremulSum && dtype == DataType::kBool) continue;
      for (const std::size_t count : counts) {
        cases.push_back({Operation::kAllReduce, dtype, op, count, 0, (d + o) % 2 == 0});
        cases.push_back({Operation::kReduceScatter, dtype, op, count, 0, (d + o) % 2 == 1});
      }
    }
  }
  return cases;
}

// Every multiset of island sizes with up to `max_ranks` ranks in total, in blocks and in turn.
std::vector<std::string> layouts(int max_ranks) {
  std::vector<std::string> list;
  const auto add = [&](const std::vector<int>& sizes) {
    std::string blocks;
    std::string dealt;
    std::vector<int> left = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      blocks += std::string(static_cast<std::size_t>(sizes[i]), static_cast<char>('A' + i));
    while (dealt.size() < blocks.size()) {
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (left[i]-- > 0) dealt += static_cast<char>('A' + i);
      }
    }
    list.push_back(blocks);
    if (dealt != blocks) list.push_back(dealt);
  };
  for (int a = 1; a <= 5; ++a) {
    if (a <= max_ranks) add({a});
    for (int b = 1; b <= 5; ++b) {
      if (a + b <= max_ranks) add({a, b});
      for (int c = 1; c <= 5; ++c) {
        if (a + b + c <= max_ranks) add({a, b, c});
        for (int d = 1; d <= 5; ++d) {
          if (a + b + c + d <= max_ranks) add({a, b, c, d});
        }
      }
    }
  }
  return list;
}

TEST(CollectivesSweep, EveryOperationOnEveryLayoutUpToSixRanks) {
  for (const auto& letters : layouts(6)) {
    SCOPED_TRACE(letters);
    RankOptions options;
    options.islands = layout(letters);
    Ranks ranks(options);
    run_cases(ranks, every_operation(ranks.size(), {0, 1, 7, 257, 1025}));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(CollectivesSweep, LargeLayouts) {
  for (const auto* letters :
       {"AAAAABBBBBCCCCCDDDDD", "ABCDABCDABCDABCD", "AAAAABBBB", "ABBABBBAA", "ABCABCABCAB", "AAAAABCD"}) {
    SCOPED_TRACE(letters);
    RankOptions options;
    options.islands = layout(letters);
    Ranks ranks(options);
    run_cases(ranks, every_operation(ranks.size(), {0, 1, 257, 5003}));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Proves C-1.
TEST(CollectivesSweep, EveryReductionOfEveryType) {
  for (const bool flat : {false, true}) {
    for (const auto* letters : {"A", "AA", "AAA", "AB", "ABA", "AABB"}) {
      SCOPED_TRACE(std::string(letters) + (flat ? " flat" : ""));
      RankOptions options;
      options.islands = layout(letters);
      options.flat_reduce = flat;
      Ranks ranks(options);
      run_cases(ranks, every_reduction({1, 67, 5000}));
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

TEST(CollectivesSweep, LargeSizesAroundChunks) {
  constexpr std::size_t kChunk = (std::size_t{256} << 10) / sizeof(float);
  for (const auto* letters : {"AA", "AAA", "ABA", "AABB", "ABCC"}) {
    SCOPED_TRACE(letters);
    RankOptions options;
    options.islands = layout(letters);
    Ranks ranks(options);
    run_cases(ranks, every_operation(ranks.size(), {kChunk - 1, kChunk, kChunk + 1, 5 * kChunk + 3}));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Proves C-11.
TEST(CollectivesSweep, TensorsInArenas) {
  constexpr std::size_t kChunk = (std::size_t{256} << 10) / sizeof(float);
  for (const auto* letters : {"AA", "AAA", "AB", "ABA", "AABB"}) {
    for (const InArena where : {InArena::kAll, InArena::kOddRanks, InArena::kOddSegments}) {
      SCOPED_TRACE(std::string(letters) + " " + std::to_string(static_cast<int>(where)));
      RankOptions options;
      options.islands = layout(letters);
      options.arena_bytes = std::size_t{256} << 20;
      Ranks ranks(options);
      run_cases(ranks, every_operation(ranks.size(), {1, 8191, 8192, kChunk + 1, 3 * kChunk + 3}), where);
      std::uint64_t lent = 0;
      for (int rank = 0; rank < ranks.size(); ++rank) {
        lent += ranks.group(rank).time_split().bytes_lent;
        EXPECT_EQ(ranks.context(rank)->endpoint().options().arena->allocated_bytes(), 0U);
      }
      EXPECT_GT(lent, 0U);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

TEST(CollectivesSweep, OverTcpBetweenHosts) {
  RankOptions options;
  options.islands = layout("AABB");
  options.hosts = {"one", "one", "two", "two"};
  Ranks ranks(options);
  run_cases(ranks, every_operation(ranks.size(), {0, 1, 257, 70001, 600001}));
  ranks.run_ok([](Group& group) {
    for (const auto& [peer, link] : group.links()) {
      EXPECT_EQ(link.substr(0, 3), group.topology().same_island(group.rank(), peer) ? "shm" : "tcp") << link;
    }
  });
}

// Random bits: every layout gives the same bits in every run, and with flat reduction all layouts give the same.
// Proves C-2.
TEST(CollectivesSweep, FlatReductionHasTheSameBitsOnEveryLayout) {
  constexpr std::size_t kCount = 40001;
  std::vector<float> first;
  for (const auto* letters : {"AAAA", "AABB", "ABAB", "ABBB", "ABCD", "ABCD"}) {
    RankOptions options;
    options.islands = layout(letters);
    options.flat_reduce = true;
    Ranks ranks(options);
    std::vector<float> result(kCount);
    ranks.run_ok([&](Group& group) {
      std::vector<float> data(kCount);
      std::uint32_t state = 12345u + static_cast<std::uint32_t>(group.rank()) * 977u;
      for (float& v : data) {
        state = state * 1664525u + 1013904223u;
        v = (static_cast<float>(state >> 8) - 8388608.0f) * 1e-4f;
      }
      Call call;
      call.input = call.output = {{reinterpret_cast<std::byte*>(data.data()), kCount * sizeof(float)}};
      group.run(call);
      if (group.rank() == 2) result = data;
    });
    if (first.empty()) first = result;
    EXPECT_EQ(std::memcmp(first.data(), result.data(), kCount * sizeof(float)), 0) << letters;
  }
}

}  // namespace
}  // namespace atl::test
