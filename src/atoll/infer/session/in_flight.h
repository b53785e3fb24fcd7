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

/// The one inference that a server runs for a session. Shared by the thread that computes and the client's thread,
/// which takes rows and is notified of ends.
class InFlight {
 public:
  /// Starts an inference and returns its number; 0 if `is_connected` returns false. That is called under the lock of
  /// lost(), so that no loss is missed.
  std::uint64_t begin(const std::shared_ptr<SplitRun>& run, const std::function<bool()>& is_connected);
  /// Drops rows that arrive from now on.
  void over();
  /// Returns whether the server has ended the last inference, because it runs one of a model at a time. One that was
  /// given up may still run there, or its end may be on the way. The next one, with `rules` and a model that takes
  /// `local` seconds here alone, waits for it a fraction of `local`, at most some milliseconds; with Hedge::kNever
  /// until the patience for the last one is used up. Throws Error(kAborted) once the gate is closed.
  bool wait_for_end(const AttemptRules& rules, double local);
  /// Bytes of rows of the last inference, as they arrived.
  std::uint64_t down_bytes() const;
  wire::Done last_done() const;

  void done(const wire::Done& done);
  void failed(std::uint64_t inference, const Error& error);
  void lost(const Error& error);
  /// Throws Error(kProtocol) for rows of inferences that have not started, and as Arrivals::take does.
  std::optional<wire::Ack> take(const wire::FrameHeader& header, std::span<const std::byte> payload);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<SplitRun> run_;  // null when it is over
  std::uint64_t last_ = 0;
  std::uint64_t unended_ = 0;
  Clock::time_point started_{};
  std::uint64_t down_bytes_ = 0;
  wire::Done done_;
};

}  // namespace atl::infer
