// SPDX-License-Identifier: Apache-2.0
// One link of each kind between two endpoints of this process: half a round trip of a small frame, and large messages
// in one direction, cut into frames as collectives cut theirs. UCX is left out if it is absent.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/endpoint.h"

namespace {

using namespace atl::transport;
using namespace std::chrono_literals;

class Silent final : public LinkObserver {
  void on_control(Link&, std::span<const std::byte>) override {}
  void on_link_failed(Link&, const atl::Error&, bool) override {}
};

EndpointOptions options_of(TransportChoice transport, const std::string& name) {
  EndpointOptions options;
  options.job = "bench";
  options.key.assign(32, std::byte{1});
  options.name = name;
  options.transport = transport;
  options.advertised_address = "127.0.0.1";
  return options;
}

/// One end of the link with its channel and its way to wait.
struct End {
  End(TransportChoice transport, const char* name) : endpoint(options_of(transport, name), observer) {}
  void open(const End& other) { channel = &endpoint.link(other.endpoint.address()).channel({.group = 1}); }

  template <class Condition>
  void wait(const Condition& condition) {
    while (!condition()) sleeper.wait_briefly(1s);
    sleeper.reset();
  }
  void send(std::span<const std::byte> payload) {
    FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    wait([&] { return channel->try_send(header, payload); });
  }
  std::size_t receive() {
    wait([&] { return channel->front() != nullptr; });
    const std::size_t bytes = channel->front()->payload.size();
    channel->pop();
    return bytes;
  }

  Silent observer;
  Endpoint endpoint;
  Sleeper sleeper{endpoint.doorbell().bell(Bell::kCollective), spin_budget(2)};
  Channel* channel = nullptr;
};

struct Pair {
  explicit Pair(TransportChoice transport) : here(transport, "rank 0"), there(transport, "rank 1") {
    here.open(there);
    there.open(here);
  }
  End here;
  End there;
};

/// Returns nullopt if the kind is absent, which the benchmark then reports.
std::optional<TransportChoice> prepare(benchmark::State& state, const std::string& kind, const char* ucx_transports) {
  if (kind == "shm") return TransportChoice::kShm;
  if (kind == "tcp") return TransportChoice::kTcp;
  ::setenv("UCX_TLS", ucx_transports, 1);
  try {
    const End probe(TransportChoice::kUcx, "probe");
    return TransportChoice::kUcx;
  } catch (const atl::Error& error) {
    state.SkipWithError(error.what());
    return std::nullopt;
  }
}

void small_frames(benchmark::State& state, const std::string& kind, const char* ucx_transports) {
  const auto transport = prepare(state, kind, ucx_transports);
  if (!transport) return;
  Pair pair(*transport);
  const std::vector<std::byte> payload(64);
  const std::vector<std::byte> last(1);
  std::thread other([&] {
    while (pair.there.receive() != last.size()) pair.there.send(payload);
  });
  for (auto _ : state) {
    pair.here.send(payload);
    pair.here.receive();
  }
  pair.here.send(last);
  other.join();
  state.counters["one_way"] = benchmark::Counter(2 * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void large_messages(benchmark::State& state, const std::string& kind, const char* ucx_transports) {
  constexpr std::size_t kMessage = std::size_t{8} << 20;
  const auto transport = prepare(state, kind, ucx_transports);
  if (!transport) return;
  Pair pair(*transport);
  const std::vector<std::byte> message(kMessage, std::byte{3});
  const std::size_t frame = pair.here.channel->max_payload();
  std::atomic<bool> ends{false};
  std::thread other([&] {
    while (!ends.load()) {
      for (std::size_t got = 0; got < kMessage;) {
        const std::size_t bytes = pair.there.receive();
        if (bytes == 0) return;
        got += bytes;
      }
      pair.there.send({});
    }
  });
  for (auto _ : state) {
    for (std::size_t at = 0; at < kMessage; at += frame) {
      pair.here.send(std::span(message).subspan(at, std::min(frame, kMessage - at)));
    }
    pair.here.receive();  // until all of it has arrived
  }
  ends.store(true);
  pair.here.send({});
  other.join();
  state.SetBytesProcessed(static_cast<std::int64_t>(kMessage) * state.iterations());
}

#define ATOLL_LINK_BENCHMARK(function)                                                                  \
  BENCHMARK_CAPTURE(function, LinkShm, std::string("shm"), "")->UseRealTime();                          \
  BENCHMARK_CAPTURE(function, LinkTcp, std::string("tcp"), "")->UseRealTime();                          \
  BENCHMARK_CAPTURE(function, LinkUcxMemory, std::string("ucx"), "posix,sysv,cma,self")->UseRealTime(); \
  BENCHMARK_CAPTURE(function, LinkUcxNetwork, std::string("ucx"), "tcp")->UseRealTime()
ATOLL_LINK_BENCHMARK(small_frames);
ATOLL_LINK_BENCHMARK(large_messages);

}  // namespace
