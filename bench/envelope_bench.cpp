// SPDX-License-Identifier: Apache-2.0
// Tables of plans for 64 rates: of published profiles, and of a made-up residual network of about 600 operators.
//   atoll_bench --benchmark_filter=table
// "whole" searches to the end, "limited" for as long as is usually allowed; "bound" is the fluid bound at one rate.
#include "atoll/plan/operators/envelope.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/region.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/published_profile.h"

namespace {

using atl::Region;
using atl::plan::LinkCost;
using atl::plan::Operand;
using atl::plan::OperatorGraph;
using atl::plan::TableOptions;

constexpr LinkCost kLink{93e6 / 8, 93e6 / 8, 0.002, true};

OperatorGraph published(const std::string& name) {
  std::ifstream file(std::filesystem::path(ATOLL_TEST_DATA) / "intradp" / "profiles" / (name + ".json"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return atl::plan::published_profile(text).graph;
}

Operand window(int producer, std::int64_t rows, std::int64_t kernel, std::int64_t stride) {
  return {producer, [=](Region made) -> Region {
            if (made.is_empty()) return {};
            const std::int64_t begin = made.begin * stride - kernel / 2;
            return atl::intersection({begin, (made.end - 1) * stride - kernel / 2 + kernel}, {0, rows});
          }};
}

// Blocks of three convolutions, each followed by an element-by-element operator, and a sum; 224 rows, halved 4 times.
OperatorGraph residual(int blocks) {
  OperatorGraph graph;
  std::int64_t rows = 224;
  std::int64_t bytes = rows * rows * 3;
  graph.operators.push_back({"input", rows, bytes, {}, {}, {}});
  bytes *= 8;
  int last = 0;
  const auto add = [&](std::int64_t made, double seconds, std::vector<Operand> operands) {
    const double per_row = seconds / static_cast<double>(made);
    graph.operators.push_back({"op", made, bytes, {1e-5, per_row}, {1e-5, per_row / 12}, std::move(operands)});
    last = static_cast<int>(graph.operators.size()) - 1;
  };
  for (int block = 0; block < blocks; ++block) {
    const int entry = last;
    for (int i = 0; i < 3; ++i) {
      add(rows, 3e-4, {window(last, rows, 3, 1)});
      add(rows, 3e-5, {window(last, rows, 1, 1)});
    }
    add(rows, 2e-5, {window(last, rows, 1, 1), window(entry, rows, 1, 1)});
    if (block % (blocks / 5 + 1) < blocks / 5) continue;
    bytes /= 2;
    add(rows / 2, 1e-4, {window(last, rows, 3, 2)});
    rows /= 2;
  }
  bytes = 4000;
  add(1, 1e-4, {{last, {}}});
  graph.outputs = {last};
  return graph;
}

void add_benchmarks(const std::string& name, const OperatorGraph& graph) {
  const auto table = [=](benchmark::State& state, double seconds) {
    TableOptions options;
    options.search_seconds = seconds;
    std::int64_t complete = 0;
    for (auto _ : state) complete += atl::plan::make_table(graph, kLink, {}, options).is_complete ? 1 : 0;
    state.counters["complete"] = static_cast<double>(complete) / static_cast<double>(state.iterations());
    state.counters["operators"] = static_cast<double>(graph.operators.size());
  };
  const auto add = [&](const std::string& what, const auto& run) {
    benchmark::RegisterBenchmark((what + "/" + name).c_str(), run)->Unit(benchmark::kMillisecond);
  };
  add("table/whole", [=](benchmark::State& state) { table(state, 1e9); });
  add("table/limited", [=](benchmark::State& state) { table(state, TableOptions{}.search_seconds); });
  add("bound", [=](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(atl::plan::fluid_bound(graph, kLink).seconds);
  });
}

bool register_all() {
  for (const char* name : {"nsdi25_kapao", "mobicom25_kapao", "mobicom25_ResNet152", "nsdi25_DenseNet121",
                           "nsdi25_ConvNeXt_Large", "nsdi25_agrnav", "nsdi25_VGG19_BN"}) {
    add_benchmarks(name, published(name));
  }
  add_benchmarks("residual", residual(85));
  return true;
}

[[maybe_unused]] const bool kRegistered = register_all();

}  // namespace
