// SPDX-License-Identifier: Apache-2.0
// Measures in-place read and write traffic of all cores with main memory: one process per core adds a constant to its
// own array, all at once, with several kinds of access.
//   dram_bandwidth [MiB per core = 256] [seconds per kind = 0.4]
// Prints JSON with GB/s (bytes read plus bytes written, all cores) per kind, and the best.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using Sweep = void (*)(float* data, std::size_t count);

void plain(float* data, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] += 1.0F;
}

#ifdef __x86_64__
constexpr std::size_t kBlock = 128;  // floats: eight cache lines

__attribute__((target("avx2"))) void avx2(float* data, std::size_t count) {
  const __m256 one = _mm256_set1_ps(1.0F);
  for (std::size_t i = 0; i < count; i += kBlock) {
    for (std::size_t j = i; j < i + kBlock; j += 8)
      _mm256_store_ps(data + j, _mm256_add_ps(_mm256_load_ps(data + j), one));
  }
}

__attribute__((target("avx512f"))) void avx512(float* data, std::size_t count) {
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::size_t i = 0; i < count; i += kBlock) {
    for (std::size_t j = i; j < i + kBlock; j += 16)
      _mm512_store_ps(data + j, _mm512_add_ps(_mm512_load_ps(data + j), one));
  }
}

__attribute__((target("avx512f"))) void avx512_prefetched(float* data, std::size_t count) {
  constexpr std::size_t kAhead = 1024;  // floats
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::size_t i = 0; i < count; i += kBlock) {
    for (std::size_t j = i; j < i + kBlock; j += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(data + j + kAhead), _MM_HINT_T0);
      _mm512_store_ps(data + j, _mm512_add_ps(_mm512_load_ps(data + j), one));
    }
  }
}

__attribute__((target("avx512f"))) void avx512_streaming(float* data, std::size_t count) {
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::size_t i = 0; i < count; i += kBlock) {
    for (std::size_t j = i; j < i + kBlock; j += 16)
      _mm512_stream_ps(data + j, _mm512_add_ps(_mm512_load_ps(data + j), one));
  }
  _mm_sfence();
}
#endif

struct Kind {
  const char* name;
  Sweep sweep;
  bool available;
};

std::vector<Kind> kinds() {
#ifdef __x86_64__
  const bool wide = __builtin_cpu_supports("avx512f") != 0;
  return {{"plain", plain, true},
          {"avx2", avx2, __builtin_cpu_supports("avx2") != 0},
          {"avx512", avx512, wide},
          {"avx512_prefetched", avx512_prefetched, wide},
          {"avx512_streaming", avx512_streaming, wide}};
#else
  return {{"plain", plain, true}};
#endif
}

/// Shared by all processes. Phases are counted, so that one barrier serves all of them.
struct Shared {
  std::atomic<int> arrived{0};
  std::atomic<long> sweeps[1024];
};

void meet(Shared& shared, int cores, int phase) {
  shared.arrived.fetch_add(1);
  while (shared.arrived.load() < cores * phase) sched_yield();
}

void* map_memory(std::size_t bytes, int sharing) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  return memory;
}

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

/// One process: its sweeps of each kind until the time is over, all processes in step.
void work(Shared& shared, int index, const std::vector<int>& cores, std::size_t bytes, double seconds,
          std::vector<double>* rates) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[static_cast<std::size_t>(index)], &set);
  sched_setaffinity(0, sizeof set, &set);
  // One page more than is swept, because the prefetch looks ahead.
  auto* data = static_cast<float*>(map_memory(bytes + 8192, MAP_PRIVATE));
  madvise(data, bytes, MADV_HUGEPAGE);
  const std::size_t count = bytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) data[i] = 1.0F;
  const int total = static_cast<int>(cores.size());
  int phase = 0;
  for (const Kind& kind : kinds()) {
    if (!kind.available) continue;
    meet(shared, total, ++phase);
    const auto begin = Clock::now();
    long sweeps = 0;
    std::chrono::duration<double> elapsed{};
    do {
      kind.sweep(data, count);
      ++sweeps;
      elapsed = Clock::now() - begin;
    } while (elapsed.count() < seconds);
    // Each process counts its own rate over its own time: none runs alone for longer than one sweep.
    shared.sweeps[index] =
        static_cast<long>(2.0 * static_cast<double>(bytes) * static_cast<double>(sweeps) / elapsed.count());
    meet(shared, total, ++phase);
    double sum = 0;
    for (int other = 0; other < total; ++other) sum += static_cast<double>(shared.sweeps[other]);
    if (rates != nullptr) rates->push_back(sum * 1e-9);
    meet(shared, total, ++phase);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 256) << 20;
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 0.4;
  const std::vector<int> cores = own_cores();
  if (bytes == 0 || cores.size() > 1024) {
    std::fprintf(stderr, "dram_bandwidth: expected at least 1 MiB per core and at most 1024 cores\n");
    return 2;
  }
  auto* shared = new (map_memory(sizeof(Shared), MAP_SHARED)) Shared;
  for (std::size_t index = 1; index < cores.size(); ++index) {
    if (fork() == 0) {
      work(*shared, static_cast<int>(index), cores, bytes, seconds, nullptr);
      _exit(0);
    }
  }
  std::vector<double> rates;
  work(*shared, 0, cores, bytes, seconds, &rates);
  while (wait(nullptr) > 0) {
  }
  std::string text;
  double best = 0;
  std::size_t place = 0;
  for (const Kind& kind : kinds()) {
    if (!kind.available) continue;
    char item[96];
    std::snprintf(item, sizeof item, "%s\"%s\": %.2f", text.empty() ? "" : ", ", kind.name, rates[place]);
    text += item;
    best = std::max(best, rates[place++]);
  }
  std::printf("{\"cores\": %zu, \"kinds\": {%s}, \"best\": %.2f}\n", cores.size(), text.c_str(), best);
  return 0;
}
