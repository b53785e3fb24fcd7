// SPDX-License-Identifier: Apache-2.0
// Folds by instruction set, dtype, operation, number of sources and bytes of each source.
//   atoll_bench --benchmark_filter=fold/avx512/float32
// "bytes_per_second" counts bytes read and written. "copy" is the reference: memcpy between the same buffers.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/collectives/reduce/reduce_kernels.h"

namespace {

using atl::collectives::DataType;
using atl::collectives::Fold;
using atl::collectives::ReduceOp;
using atl::collectives::Simd;

/// Cache-line aligned arrays of `bytes`, all zeros.
class Arrays {
 public:
  Arrays(std::size_t number, std::size_t bytes)
      : stride_((bytes + 4096 + 127) / 64 * 64), memory_(number * stride_ + 64), start_(memory_.data()) {
    start_ += (64 - reinterpret_cast<std::uintptr_t>(start_) % 64) % 64;
  }
  std::byte* operator[](std::size_t index) { return start_ + index * stride_; }

 private:
  std::size_t stride_;
  std::vector<std::byte> memory_;
  std::byte* start_;
};

/// Returns whether `simd` gives the results of plain code, for arbitrary bytes and a length that leaves a remainder.
bool is_right(Simd simd, const Fold& how, std::size_t source_count) {
  constexpr std::size_t kCount = 1021;
  const std::size_t bytes = kCount * size_of(how.dtype);
  std::vector<std::vector<std::byte>> memory(source_count + 2, std::vector<std::byte>(bytes));
  std::vector<const std::byte*> sources;
  std::mt19937 random(1);
  for (std::size_t source = 0; source < source_count; ++source) {
    for (std::byte& byte : memory[source]) byte = static_cast<std::byte>(random());
    sources.push_back(memory[source].data());
  }
  fold_with(simd, how, sources, memory[source_count].data(), kCount);
  fold_with(Simd::kPlain, how, sources, memory[source_count + 1].data(), kCount);
  return memory[source_count] == memory[source_count + 1];
}

/// Folds into the first source, as a reducing rank does. The arrays stay zero, so that the values do not grow.
void run_fold(benchmark::State& state, Simd simd, const Fold& how, std::size_t source_count, std::size_t bytes,
              std::size_t shift) {
  if (!is_right(simd, how, source_count)) {
    state.SkipWithError("differs from plain code");
    return;
  }
  const std::size_t count = bytes / size_of(how.dtype);
  Arrays arrays(source_count, bytes);
  std::vector<const std::byte*> sources;
  for (std::size_t source = 0; source < source_count; ++source) sources.push_back(arrays[source] + shift);
  for (auto _ : state) {
    fold_with(simd, how, sources, arrays[0] + shift, count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(
      static_cast<std::int64_t>(state.iterations() * (source_count + 1) * count * size_of(how.dtype)));
}

void run_copy(benchmark::State& state, std::size_t bytes) {
  Arrays arrays(2, bytes);
  for (auto _ : state) {
    std::memcpy(arrays[1], arrays[0], bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * 2 * bytes));
}

void add_fold(Simd simd, const Fold& how, std::size_t source_count, std::size_t bytes, std::size_t shift = 0) {
  std::string name = std::string("fold/") + to_string(simd) + "/" + to_string(how.dtype) + "/" + to_string(how.op);
  if (how.op == ReduceOp::kAvg) name += "/by:" + std::to_string(how.divisor);
  name += "/sources:" + std::to_string(source_count) + "/bytes:" + std::to_string(bytes);
  if (shift != 0) name += "/shift:" + std::to_string(shift);
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { run_fold(state, simd, how, source_count, bytes, shift); });
}

constexpr std::size_t kSizes[] = {std::size_t{32} << 10, std::size_t{256} << 10, std::size_t{64} << 20};

void add_common(Simd simd, DataType dtype) {
  const Fold sum{.dtype = dtype};
  add_fold(simd, sum, 2, size_of(dtype));
  for (const std::size_t bytes : kSizes) add_fold(simd, sum, 2, bytes);
  for (const std::size_t source_count : {3, 4, 8}) add_fold(simd, sum, source_count, kSizes[0]);
  add_fold(simd, sum, 2, kSizes[0], size_of(dtype));
  for (const int divisor : {2, 3}) {
    add_fold(simd, {.dtype = dtype, .op = ReduceOp::kAvg, .divisor = divisor}, 2, kSizes[0]);
  }
}

bool register_all() {
  for (const std::size_t bytes : kSizes) {
    benchmark::RegisterBenchmark(("copy/bytes:" + std::to_string(bytes)).c_str(),
                                 [=](benchmark::State& state) { run_copy(state, bytes); });
  }
  const Simd best = atl::collectives::detail::machine_simd();
  for (const Simd simd : {Simd::kPlain, Simd::kAvx2, Simd::kAvx512}) {
    if (simd > best) break;
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBFloat16}) {
      add_common(simd, dtype);
    }
  }
  for (int dtype = 0; dtype < atl::collectives::kDataTypeCount; ++dtype) {
    for (int op = 0; op < atl::collectives::kReduceOpCount; ++op) {
      const Fold how{
          .dtype = static_cast<DataType>(dtype), .op = static_cast<ReduceOp>(op), .premultiply = true, .divisor = 5};
      if (is_supported(how.op, how.dtype)) add_fold(best, how, 2, std::size_t{64} << 10);
    }
  }
  return true;
}

[[maybe_unused]] const bool kRegistered = register_all();

}  // namespace
