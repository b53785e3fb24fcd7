// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/control_message.h"
#include "atoll/core/deadline.h"

namespace atl::collectives {

/// A collective in which this rank is waiting.
struct Stall {
  std::uint64_t sequence = 0;
  std::string name;             ///< "all_reduce #5 (sum, float32, 100 elements)"
  std::span<const int> peers;   ///< peers whose data or credit is awaited; empty while waiting for the input
  Clock::time_point entered{};  ///< when this rank called it
  Clock::time_point since{};    ///< when it last made progress
};

/// Returns the pause before the next check of a stall, after `checks` of them: short at first, so that reports can
/// travel over several ranks.
inline std::chrono::milliseconds until_next_check(int checks) noexcept {
  return std::chrono::milliseconds(checks < 5 ? 200 : 1000);
}

/// Tracks which ranks have entered a collective. Ranks that wait in a collective query the peers they wait for, and
/// each rank passes on what it knows, so that all ranks learn which one is missing although few have a link to it.
/// Costs nothing while no rank waits. Thread-safe; callers pass in the current time.
class RollCall {
 public:
  struct Options {
    int rank = 0;
    std::string group;                           ///< for the log
    std::vector<std::string> labels;             ///< by rank: "3", "1 (5 of the job)"
    std::chrono::milliseconds slow_after{0};     ///< the first report; 0: none
    std::function<std::string(int peer)> way{};  ///< the link to `peer`: "tcp 10.0.0.1:4711 -> 10.0.0.2:4712", or ""
  };
  explicit RollCall(Options options);

  /// Records another rank's message.
  void record(const RollCallMessage& message, Clock::time_point now);

  /// Returns this rank's message about `sequence`: its own progress, and what it knows of the others.
  RollCallMessage message(std::uint64_t sequence, const RankProgress& own, bool wants_reply,
                          Clock::time_point now) const;

  /// Returns a log line if one is due: after slow_after without progress, then after three times as long, nine times,
  /// ...
  std::optional<std::string> report(const Stall& stall, Clock::time_point now);

  /// Call it when the collective is over: returns a log line if the stall was reported.
  std::optional<std::string> finish(const Stall& stall, Clock::time_point now);

  /// Returns why the collective is stalled, as far as this rank knows: "rank 3 has not entered it (...)", or "".
  std::string explain(const Stall& stall, Clock::time_point now) const;

 private:
  struct Known {
    bool heard = false;
    RankProgress where;
    Clock::time_point since{};
    Clock::time_point reported{};
  };
  struct Table {
    std::uint64_t sequence = 0;
    std::vector<Known> ranks;
  };
  struct Findings;

  Table& table(std::uint64_t sequence);
  const Table* find(std::uint64_t sequence) const;
  std::string heading() const;
  Findings find_out(const Stall& stall, Clock::time_point now) const;
  std::string list(const std::vector<int>& ranks) const;
  std::string have(const std::vector<int>& ranks) const;
  std::string absence(const Findings& findings, const std::string& what, Clock::time_point now) const;
  std::string describe_findings(const Stall& stall, const Findings& findings, const std::string& what,
                                Clock::time_point now) const;

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<Table> tables_;   // of the latest collectives in which a rank waited
  std::uint64_t reported_ = 0;  // the collective of the last report
  bool has_reported_ = false;
  Clock::time_point stall_{};          // when its stall began
  std::chrono::milliseconds next_{0};  // how long it must have lasted for the next report
  std::vector<int> named_;             // the ranks reported as missing
};

}  // namespace atl::collectives
