// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/rail_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace atl::transport::tcp {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::uint64_t kReceiveWindow = std::uint64_t{4} << 20;

/// Simulates paths that carry bytes in order, at a rate that may change, and a link's sender that uses them: a window
/// that opens in order, and an acknowledgement per segment. Time is counted, not measured.
class Network {
 public:
  struct Path {
    std::function<double(double second)> rate;
    double latency = 50e-6;
    double expected = 125e6;
    std::function<double(int acknowledgement)> late = [](int) { return 0.0; };  // seconds, of its acknowledgements
  };

  explicit Network(std::vector<Path> paths)
      : paths_(std::move(paths)),
        carried_(paths_.size()),
        free_(paths_.size()),
        heard_(paths_.size()),
        acknowledgements_(paths_.size()) {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      scheduler.open(i, {.bytes_per_second = paths_[i].expected, .latency_seconds = paths_[i].latency}, at(0));
    }
  }

  /// Sends until `second`, or until `bytes` have come; returns when that was.
  double run(double second, std::uint64_t bytes = ~std::uint64_t{0}) {
    const std::uint64_t goal = bytes == ~std::uint64_t{0} ? bytes : offered_ + bytes;
    while (now_ < second) {
      offer(goal);
      const double next_event = events_.empty() ? next_tick_ : std::min(next_tick_, events_.begin()->first);
      now_ = std::min(next_event, second);
      if (!events_.empty() && events_.begin()->first <= now_) {
        take_acknowledgement();
        if (in_order_ == goal) return now_;
      } else if (now_ == next_tick_) {
        next_tick_ += kTick;
        if (const auto turn = scheduler.probe(at(now_), ~0U)) put(*turn, 0);
      }
    }
    return now_;
  }

  /// Sends messages, one after the other with a pause after each, until `second`; returns how long the last one took.
  double converse(double second, std::uint64_t bytes, double pause) {
    double took = 0;
    while (now_ < second) {
      const double begin = now_;
      took = run(begin + 10, bytes) - begin;
      const double next = now_ + pause;
      while (now_ < next) run(next, 0);
    }
    return took;
  }

  double seconds() const { return now_; }

  /// Bytes that were carried as data since the last call, by path.
  std::vector<double> carried() {
    std::vector<double> since(paths_.size());
    for (std::size_t i = 0; i < since.size(); ++i) since[i] = std::exchange(carried_[i], 0);
    return since;
  }

  RailScheduler scheduler;

 private:
  static constexpr double kTick = 0.25;
  static constexpr std::size_t kAckRequest = 12;

  struct Event {
    std::size_t rail;
    std::size_t bytes;
    std::uint64_t position;  // after its data, or 0
    std::size_t data;
  };

  static RailScheduler::Time at(double second) {
    return RailScheduler::Time{} + std::chrono::hours(1) + std::chrono::duration_cast<Clock::duration>(Seconds(second));
  }

  void offer(std::uint64_t goal) {
    for (;;) {
      const std::uint64_t limit = std::min(goal, in_order_ + kReceiveWindow);
      if (offered_ >= limit) return ask();
      const auto turn = scheduler.next(limit - offered_, ~0U);
      if (!turn) return ask();
      offered_ += turn->bytes;
      scheduler.sent(turn->rail, turn->bytes, at(now_));
      put(*turn, offered_);
    }
  }

  void ask() {
    for (std::size_t rail = 0; rail < paths_.size(); ++rail) {
      if (!scheduler.wants_ack_request(rail, at(now_))) continue;
      scheduler.ack_requested(rail, kAckRequest, at(now_));
      put({rail, 0}, 0);
    }
  }

  void put(const RailScheduler::Turn& turn, std::uint64_t position) {
    double& free = free_[turn.rail];
    const double begin = std::max(free, now_);
    free = begin + static_cast<double>(turn.bytes) / paths_[turn.rail].rate(begin);
    double& heard = heard_[turn.rail];
    // What leaves together is read together.
    const double late = heard <= now_ ? paths_[turn.rail].late(acknowledgements_[turn.rail]++) : 0.0;
    heard = std::max(heard, free + 2 * paths_[turn.rail].latency + late);
    events_.emplace(heard,
                    Event{turn.rail, std::max(turn.bytes, kAckRequest), position, position == 0 ? 0 : turn.bytes});
  }

  void take_acknowledgement() {
    const Event event = events_.begin()->second;
    events_.erase(events_.begin());
    carried_[event.rail] += static_cast<double>(event.data);
    if (event.data != 0) there_[event.position - event.data] = event.position;
    for (auto next = there_.find(in_order_); next != there_.end(); next = there_.find(in_order_)) {
      in_order_ = next->second;
      there_.erase(next);
    }
    scheduler.acknowledged(event.rail, event.bytes, at(now_));
  }

  std::vector<Path> paths_;
  std::vector<double> carried_;
  std::vector<double> free_;   // when the path is
  std::vector<double> heard_;  // when the last acknowledgement comes
  std::vector<int> acknowledgements_;
  std::multimap<double, Event> events_;
  std::map<std::uint64_t, std::uint64_t> there_;
  double now_ = 0;
  double next_tick_ = kTick;
  std::uint64_t offered_ = 0;
  std::uint64_t in_order_ = 0;
};

std::function<double(double)> steady(double rate) {
  return [rate](double) { return rate; };
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(RailScheduler, SharesFollowTheRates) {
  const std::vector<std::vector<double>> cases{{25e6, 25e6},
                                               {25e6, 12.5e6},
                                               {100e6, 10e6},
                                               {100e6, 50e6, 25e6},
                                               {50e6, 50e6, 50e6, 50e6},
                                               {500e6, 400e6},
                                               {12.5e6, 125e6, 12.5e6, 60e6}};
  for (const auto& rates : cases) {
    std::vector<Network::Path> paths;
    for (const double rate : rates) paths.push_back({.rate = steady(rate)});
    Network network(paths);
    network.run(1);  // until the rates are known
    network.carried();
    network.run(3);
    const auto carried = network.carried();
    EXPECT_GE(sum(carried), 0.95 * 2 * sum(rates)) << rates.size() << " rails, the first " << rates[0];
    for (std::size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(carried[i] / sum(carried), rates[i] / sum(rates), 0.05 * rates[i] / sum(rates) + 0.005)
          << "rail " << i << " of " << rates.size() << ", the first " << rates[0];
      EXPECT_NEAR(network.scheduler.rate(i), rates[i], 0.15 * rates[i]);
    }
  }
}

TEST(RailScheduler, AMessageTakesLittleLongerThanItsBytesOverTheSumOfTheRates) {
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 20;
  for (const std::vector<double>& rates : {std::vector<double>{25e6, 25e6}, {25e6, 25e6, 25e6, 25e6}, {100e6, 10e6}}) {
    std::vector<Network::Path> paths;
    for (const double rate : rates) paths.push_back({.rate = steady(rate)});
    Network network(paths);
    const double begin = network.run(100, std::uint64_t{64} << 20);
    const double took = network.run(200, kBytes) - begin;
    EXPECT_LE(took, 1.1 * static_cast<double>(kBytes) / sum(rates)) << rates.size() << " rails, the first " << rates[0];
  }
}

TEST(RailScheduler, ARailThatIsFarTooSlowDoesNoHarm) {
  Network network({{.rate = steady(1000e6)}, {.rate = steady(125e3)}});
  network.run(3);
  network.carried();
  network.run(5);
  EXPECT_GE(network.carried()[0], 0.97 * 2 * 1000e6);
}

TEST(RailScheduler, AProbeFindsARailThatIsFastAgain) {
  const auto back_at_ten = [](double second) { return second < 10 ? 100e3 : 100e6; };
  Network network({{.rate = steady(100e6)}, {.rate = back_at_ten, .expected = 100e3}});
  network.run(10);
  EXPECT_EQ(network.carried()[1], 0) << "so slow a rail carries probes alone";
  network.carried();
  network.run(14);
  network.carried();
  network.run(15);
  const auto carried = network.carried();
  EXPECT_GE(sum(carried), 0.9 * 200e6);
  EXPECT_NEAR(carried[1] / sum(carried), 0.5, 0.05);
}

TEST(RailScheduler, ARailThatBecomesSlowLosesItsShareSoon) {
  const auto slow_after_two = [](double second) { return second < 2 ? 200e6 : 20e6; };
  Network network({{.rate = steady(200e6)}, {.rate = slow_after_two}});
  network.run(2.5);
  network.carried();
  network.run(3.5);
  EXPECT_GE(sum(network.carried()), 0.95 * 220e6);
}

constexpr std::uint64_t kSmall = std::uint64_t{32} << 10;

TEST(RailScheduler, SmallMessagesShareRailsThatAreSlowerThanTheyState) {
  for (const double stated : {125e6, 1250e6}) {
    const double rate = stated / 10;
    Network network({{.rate = steady(rate), .expected = stated}, {.rate = steady(rate), .expected = stated}});
    EXPECT_NEAR(network.converse(0.001, kSmall, 0.005), kSmall / rate + 100e-6, 10e-6) << "over one of them at first";
    network.converse(3, kSmall, 0.005);
    network.carried();
    const double took = network.converse(4, kSmall, 0.005);
    const auto carried = network.carried();
    EXPECT_NEAR(carried[0] / sum(carried), 0.5, 0.1) << stated;
    EXPECT_LE(took, 1.1 * kSmall / (2 * rate) + 100e-6) << stated;
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(network.scheduler.rate(i), rate, 0.15 * rate) << stated;
  }
}

TEST(RailScheduler, SmallMessagesFindTheFasterOfUnequalRails) {
  for (const bool fast_first : {true, false}) {
    const std::size_t fast = fast_first ? 0 : 1;
    std::vector<Network::Path> paths{{.rate = steady(12.5e6)}, {.rate = steady(12.5e6)}};
    paths[fast].rate = steady(50e6);
    Network network(paths);
    network.converse(3, kSmall, 0.005);
    EXPECT_LE(network.converse(4, kSmall, 0.005), kSmall / 50e6 + 101e-6) << "no longer than over the fast one alone";
    network.carried();
    EXPECT_LE(network.converse(5, 2 * kSmall, 0.005), 0.97 * 2 * kSmall / 50e6 + 100e-6) << "both rails share it";
    const auto carried = network.carried();
    EXPECT_NEAR(carried[fast] / sum(carried), 0.8, 0.1);
    EXPECT_NEAR(network.scheduler.rate(fast), 50e6, 0.15 * 50e6);
    EXPECT_NEAR(network.scheduler.rate(1 - fast), 12.5e6, 0.15 * 12.5e6);
  }
}

TEST(RailScheduler, AFastRailKeepsItsRateWhateverItsLatency) {
  const auto mostly_late = [](int number) { return number % 5 == 0 ? 0.0 : 3e-3; };  // a processor was busy
  const auto late_always = [](int number) { return 2e-3 + 1e-3 * (number % 3); };
  const auto on_time = [](int) { return 0.0; };
  for (const std::function<double(int)>& late : {std::function<double(int)>(on_time), {mostly_late}, {late_always}}) {
    for (const double latency : {10e-6, 200e-6, 20e-3}) {
      Network network({{.rate = steady(1250e6), .latency = latency, .expected = 1250e6, .late = late},
                       {.rate = steady(1250e6), .latency = latency, .expected = 1250e6, .late = late}});
      for (const std::uint64_t bytes : {kSmall / 2, kSmall}) {
        network.converse(network.seconds() + 3, bytes, 0.005);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_GE(network.scheduler.rate(i), 0.9 * 1250e6) << bytes << " bytes, latency " << latency;
        }
      }
    }
  }
}

TEST(RailScheduler, MessagesThatLeaveBeforeTheLastIsAcknowledgedTellTheRate) {
  RailScheduler scheduler;
  RailScheduler::Time now = RailScheduler::Time{} + std::chrono::hours(1);
  scheduler.open(0, {.bytes_per_second = 1250e6}, now - std::chrono::minutes(2));
  ASSERT_TRUE(scheduler.probe(now - std::chrono::minutes(1), 1)) << "the round trip, though the link is idle";
  scheduler.acknowledged(0, 12, now - std::chrono::minutes(1));
  EXPECT_TRUE(scheduler.wants_round_trip(0, now)) << "before the first bytes, as that is long ago";
  std::vector<std::size_t> ack_requests;
  for (std::size_t message = 0; message < 40; ++message, now += std::chrono::microseconds(5243)) {
    scheduler.sent(0, kSmall, now);
    ack_requests.push_back(scheduler.wants_ack_request(0, now) ? 12 : 0);
    if (ack_requests.back() != 0) scheduler.ack_requested(0, ack_requests.back(), now);
    if (message >= 2) scheduler.acknowledged(0, kSmall + ack_requests[message - 2], now);
  }
  EXPECT_NEAR(scheduler.rate(0), 8e6, 5e6) << "it is 6.25 MB/s";
}

TEST(RailScheduler, WhatIsAcknowledgedAtLeisureTellsNothing) {
  RailScheduler scheduler;
  RailScheduler::Time now = RailScheduler::Time{} + std::chrono::hours(1);
  scheduler.open(0, {}, now);
  scheduler.ack_requested(0, 12, now);
  scheduler.acknowledged(0, 12, now + std::chrono::microseconds(50));
  for (int i = 0; i < 100; ++i) {
    now += std::chrono::milliseconds(300);
    scheduler.sent(0, 20'000, now);
    EXPECT_TRUE(scheduler.wants_ack_request(0, now));
    scheduler.acknowledged(0, 20'000, now + std::chrono::milliseconds(250));
  }
  EXPECT_GE(scheduler.rate(0), 125e6);
}

TEST(RailScheduler, ABusyRailSaysMoreThanBursts) {
  const auto fast_after_four = [](double second) { return second < 4 ? 12.5e6 : 100e6; };
  Network network({{.rate = fast_after_four}});
  network.converse(4, kSmall, 0.005);
  EXPECT_NEAR(network.scheduler.rate(0), 12.5e6, 0.15 * 12.5e6);
  network.run(4.1);
  EXPECT_GE(network.scheduler.rate(0), 0.85 * 100e6) << "at once, as nothing better was known";
  network.converse(12, kSmall, 0.005);
  EXPECT_NEAR(network.scheduler.rate(0), 100e6, 0.15 * 100e6);
}

TEST(RailScheduler, BurstsTellARateAgainWhenTheBusyRailIsLongAgo) {
  const auto slow_after_one = [](double second) { return second < 1 ? 100e6 : 10e6; };
  Network network({{.rate = slow_after_one}});
  network.run(1);
  EXPECT_NEAR(network.scheduler.rate(0), 100e6, 0.15 * 100e6);
  network.converse(20, kSmall, 0.005);
  EXPECT_NEAR(network.scheduler.rate(0), 10e6, 0.15 * 10e6);
}

TEST(RailScheduler, AnIdleLinkIsNotProbed) {
  RailScheduler scheduler;
  const RailScheduler::Time begin = RailScheduler::Time{} + std::chrono::hours(1);
  for (std::size_t i = 0; i < 2; ++i) scheduler.open(i, {}, begin);
  scheduler.sent(0, 1000, begin);
  int probes = 0;
  for (int tick = 1; tick <= 100; ++tick) {
    const auto now = begin + tick * std::chrono::milliseconds(100);
    scheduler.acknowledged(0, 1000, now);
    while (const auto turn = scheduler.probe(now, 3)) {
      ++probes;
      scheduler.acknowledged(turn->rail, turn->bytes, now + std::chrono::milliseconds(1));
    }
  }
  EXPECT_LE(probes, 2);
}

TEST(RailScheduler, ClosedAndBusyRailsGetNothing) {
  RailScheduler scheduler;
  const RailScheduler::Time now = RailScheduler::Time{} + std::chrono::hours(1);
  EXPECT_FALSE(scheduler.next(1000, ~0U));
  EXPECT_FALSE(scheduler.nearest(~0U));
  scheduler.open(2, {}, now);
  scheduler.open(5, {}, now);
  EXPECT_EQ(scheduler.next(1000, 1U << 5)->rail, 5U);
  EXPECT_EQ(scheduler.next(1000, 1U << 5)->bytes, 1000U);
  EXPECT_FALSE(scheduler.next(1000, 1U << 3));
  scheduler.close(5);
  for (int i = 0; i < 100000 && scheduler.next(~0U, ~0U); ++i) {
    const auto turn = scheduler.next(~0U, ~0U);
    ASSERT_EQ(turn->rail, 2U);
    EXPECT_EQ(turn->bytes % 64, 0U);
    scheduler.sent(2, turn->bytes, now);
  }
  EXPECT_FALSE(scheduler.next(1, ~0U)) << "what is on its way is bounded";
  EXPECT_EQ(*scheduler.nearest(~0U), 2U) << "control is not held up";
  EXPECT_LE(scheduler.on_its_way(2), 2U << 20);
}

TEST(RailScheduler, TellsHowLongItsBytesTake) {
  RailScheduler scheduler;
  const RailScheduler::Time now = RailScheduler::Time{} + std::chrono::hours(1);
  EXPECT_EQ(scheduler.longest_seconds(), 0);
  scheduler.open(0, {.bytes_per_second = 1e6}, now);
  scheduler.open(3, {.bytes_per_second = 1e5}, now);
  scheduler.sent(0, 500'000, now);
  scheduler.sent(3, 20'000, now);
  EXPECT_DOUBLE_EQ(scheduler.longest_seconds(), 0.5);
  scheduler.sent(3, 80'000, now);
  EXPECT_DOUBLE_EQ(scheduler.longest_seconds(), 1);
  scheduler.close(3);
  EXPECT_DOUBLE_EQ(scheduler.longest_seconds(), 0.5);
}

TEST(RailScheduler, ANearRailComesFirst) {
  RailScheduler scheduler;
  const RailScheduler::Time now = RailScheduler::Time{} + std::chrono::hours(1);
  scheduler.open(0, {.latency_seconds = 60e-6}, now);
  scheduler.open(1, {.latency_seconds = 20e-6}, now);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(scheduler.next(100, ~0U)->rail, 1U);
    scheduler.sent(1, 100, now);
  }
}

}  // namespace
}  // namespace atl::transport::tcp
