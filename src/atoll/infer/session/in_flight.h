// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "atoll/infer/session/attempt.h"

namespace atl::infer {

/// The one inference that a server runs for a session, between the thread that computes and the client's, which takes rows and
/// hears of ends.
class InFlight {
 public:
  /// The inference's number; 0 where `is_connected` says no. That is asked behind the lock of lost(), so that no loss
  /// is missed.
  std::uint64_t begin(const std::shared_ptr<SplitRun>& run, const std::function<bool()>& is_connected);
  /// Rows that come from now on are dropped.
  void over();
  /// Whether the server has ended the last inference: it runs one of a model at a time. One that was given up may go on there, and
  /// an end may be under way. The next one, of `rules` and with a model that takes `local` seconds here alone, waits for that a
  /// fraction of `local`, at most some milliseconds; with Hedge::kNever until the last one has had all patience.
  /// Error(kAborted) once the gate is closed.
  bool wait_for_end(const AttemptRules& rules, double local);
  /// Of rows of the last inference, as they came.
  std::uint64_t down_bytes() const;
  wire::Done last_done() const;

  void done(const wire::Done& done);
  void failed(std::uint64_t inference, const Error& error);
  void lost(const Error& error);
  /// Error(kProtocol) for rows of inferences that have not begun, and as Arrivals::take.
  std::optional<wire::Ack> take(const wire::FrameHeader& header, std::span<const std::byte> payload);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<SplitRun> run_;  // null when it is over
  std::uint64_t last_ = 0;
  std::uint64_t unended_ = 0;
  Clock::time_point begun_{};
  std::uint64_t down_bytes_ = 0;
  wire::Done done_;
};

}  // namespace atl::infer
