// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "atoll/collectives/library_step.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/core/error.h"

namespace atl::collectives {

/// The one order in which the ranks of an island use their library. Libraries such as NCCL may block for ever where ranks begin
/// operations of several communicators in different orders, and each rank alone knows when it is ready for one.
///
///   1. A rank that is ready for a step requests it of the island's first rank, the leader.
///   2. When all ranks of the step have, the leader grants it to them. Links keep the order of what they carry, so each rank
///      hears of the steps it shares with others in the order in which they do.
///   3. A rank does granted steps in the order in which it heard of them.
///   4. Where the leader is ready for a kOutAfterIn, all ranks will be without doing anything else: it grants the step unasked,
///      and what is granted after it waits on each rank until this rank is ready.
///
/// So nobody begins another step before all are ready for it, and none waits for something that comes later in the order. The
/// cost is two short messages in a step's way, one where the rank is the leader; steps that are ready at the same time share it.
/// Thread-safe; what it calls must not call back.
class IslandOrder {
 public:
  /// What the group does for it. Both are called without locks held.
  struct Hooks {
    std::function<void(const Error&)> fail;                           ///< ends the group
    std::function<void(std::chrono::milliseconds delay)> look_later;  ///< calls look() after that time
    /// Asks the step's other ranks whether one of them has refused its operation: a refusal is told over links that are open.
    std::function<void(const LibraryStep&)> ask;
  };

  /// `island`: its ranks, in order.
  IslandOrder(PeerPorts& ports, std::vector<int> island, Hooks hooks);

  /// Opens the link to the leader, over which the first request goes then without delay.
  void open_link();

  void request(StepRequest request);

  /// The step is given up: `go` is called with `error` if it has not been granted. Returns whether that was so.
  bool cancel(const LibraryStep& step, const std::exception_ptr& error);

  /// This rank will not request the step, a kOutAfterIn: what is granted after it goes on.
  void give_up(const LibraryStep& step);

  /// A rank of the island takes no further part. What it does not have to do with goes on, with the next rank as the leader.
  void mark_left(int rank);

  /// A peer's message; on the loop.
  void hear_request(int from, std::span<const std::byte> body);
  void hear_grant(std::span<const std::byte> body);

  /// Sends what a link could not take, asks about a step that is waited for, and fails the group where a deadline has passed.
  void look();

  /// The group has failed: calls every `go` that waits with its error, and those of later requests.
  void fail(const std::exception_ptr& error);

 private:
  int leader() const { return present_.front(); }
  void ask_leader(const LibraryStep& step);
  std::vector<int> ranks_of(const LibraryStep& step) const;
  void note_ready(int rank, const LibraryStep& step);
  void grant(const LibraryStep& step);
  void do_granted(const LibraryStep& step);
  void pass_over_earlier(const LibraryStep& step);
  void go_on();
  void tell(int rank, std::vector<std::byte> message);
  void send_what_waits();
  void begin_looking();

  PeerPorts& ports_;
  const std::vector<int> island_;
  const Hooks hooks_;
  std::mutex mutex_;          // guards all that follows; held while a `go` is called, so that these come in order
  std::vector<int> present_;  // of the island, who has not left
  std::map<LibraryStep, StepRequest> waiting_;     // this rank's own, not granted yet
  std::map<LibraryStep, std::vector<int>> ready_;  // who has requested of this rank what is not granted yet
  std::deque<LibraryStep> granted_;                // from one on that this rank is not ready for yet, a kOutAfterIn
  std::set<std::uint64_t> given_up_;               // numbers of kOutAfterIn that may still be granted
  std::uint64_t first_after_in_ = 0;               // number of the first kOutAfterIn that may still come
  std::map<int, std::deque<std::vector<std::byte>>> unsent_;  // by rank: what its link did not take yet
  bool is_looking_ = false;                // look() will be called: for deadlines, and what is unsent
  std::optional<LibraryStep> waited_for_;  // kOut: since the last look()
  std::exception_ptr error_;
};

}  // namespace atl::collectives
