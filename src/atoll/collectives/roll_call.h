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

#include "atoll/collectives/roll_call_message.h"
#include "atoll/core/deadline.h"

namespace atl::collectives {

/// A collective that this rank waits in.
struct Stall {
  std::uint64_t sequence = 0;
  std::string name;             ///< "all_reduce #5 (sum, float32, 100 elements)"
  std::span<const int> peers;   ///< whose data or room for data is awaited; empty while the input is
  Clock::time_point entered{};  ///< when this rank called it
  Clock::time_point since{};    ///< of the last progress
};

/// When a stall is looked at for the first time, and after `looks` such the next time: often at first, for news to come over several ranks.
inline std::chrono::milliseconds until_next_look(int looks) noexcept {
  return std::chrono::milliseconds(looks < 5 ? 200 : 1000);
}

/// Who has come to a collective and who has not. The ranks that wait in one ask those they wait for, and each passes on what it has heard,
/// so that all learn who is missing though few talk to it. Costs nothing while no rank waits. Thread-safe; times are given.
class RollCall {
 public:
  struct Options {
    int rank = 0;
    std::string group;                           ///< for the log
    std::vector<std::string> labels;             ///< by rank: "3", "1 (5 of the job)"
    std::chrono::milliseconds slow_after{0};     ///< the first report; 0: none
    std::function<std::string(int peer)> way{};  ///< "tcp 10.0.0.1:4711 -> 10.0.0.2:4712", or ""
  };
  explicit RollCall(Options options);

  /// What another rank said.
  void hear(const RollCallMessage& message, Clock::time_point now);

  /// What this rank says about `sequence`: where it is, and what it has heard.
  RollCallMessage message(std::uint64_t sequence, const Whereabouts& own, bool asks, Clock::time_point now) const;

  /// A line for the log when one is due: after slow_after without progress, then after three times as long, nine times, ...
  std::optional<std::string> report(const Stall& stall, Clock::time_point now);

  /// The collective is over: a line for the log if it had been reported.
  std::optional<std::string> finish(const Stall& stall, Clock::time_point now);

  /// Why the collective stands still as far as it is known: "rank 3 has not entered it (...)", or "".
  std::string account(const Stall& stall, Clock::time_point now) const;

 private:
  struct Known {
    bool heard = false;
    Whereabouts where;
    Clock::time_point since{};
    Clock::time_point said{};
  };
  struct Table {
    std::uint64_t sequence = 0;
    std::vector<Known> ranks;
  };
  struct Findings;

  Table& table(std::uint64_t sequence);
  const Table* find(std::uint64_t sequence) const;
  Findings find_out(const Stall& stall, Clock::time_point now) const;
  std::string list(const std::vector<int>& ranks) const;
  std::string absence(const Findings& findings, const std::string& what, Clock::time_point now) const;
  std::string say(const Stall& stall, const Findings& findings, const std::string& what, Clock::time_point now) const;

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<Table> tables_;   // of the latest collectives that anybody waited in
  std::uint64_t reported_ = 0;  // sequence of the last report,
  bool has_reported_ = false;
  Clock::time_point stall_{};          // its stall,
  std::chrono::milliseconds next_{0};  // how long that must have lasted for the next report,
  std::vector<int> named_;             // and who was said to be missing
};

}  // namespace atl::collectives
