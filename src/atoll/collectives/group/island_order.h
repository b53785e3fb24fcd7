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

#include "atoll/collectives/call.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/core/error.h"

namespace atl::collectives {

/// Decides the one order in which the ranks of an island use their library. Libraries such as NCCL may block forever if
/// ranks start operations of several communicators in different orders, and only each rank itself knows when it is
/// ready for one.
///
///   1. A rank that is ready for a step requests it from the island's first rank, the leader.
///   2. When all ranks of the step have requested it, the leader grants it to them. Links are ordered, so each rank
///      receives the grants of the steps that it shares with others in the same order as they do.
///   3. A rank carries out granted steps in the order of the grants.
///   4. If the leader is ready for a kOutAfterIn, all ranks will become ready without doing anything else: it grants
///      the step without requests, and later grants wait on each rank until that rank is ready.
///
/// So no rank starts a step before all its ranks are ready, and no rank waits for a step that comes later in the order.
/// The cost is two short messages of latency per step, or one on the leader; steps that are ready at the same time
/// share it. Thread-safe; its hooks must not call back.
class IslandOrder {
 public:
  /// Functions that the group provides. They are called without locks held.
  struct Hooks {
    std::function<void(const Error&)> fail;                           ///< fails the group
    std::function<void(std::chrono::milliseconds delay)> poll_later;  ///< calls poll() after `delay`
    /// Queries the step's other ranks whether one of them has refused its operation: refusals are sent over open links
    /// only.
    std::function<void(const LibraryStep&)> query;
  };

  /// `island` lists its ranks, in order.
  IslandOrder(PeerPorts& ports, std::vector<int> island, Hooks hooks);

  /// Opens the link to the leader, so that the first request is not delayed.
  void open_link();

  void request(StepRequest request);

  /// Cancels a step: if it has not been granted, calls its `go` with `error` and returns true.
  bool cancel(const LibraryStep& step, const std::exception_ptr& error);

  /// States that this rank will not request the step, a kOutAfterIn: later grants no longer wait for it.
  void give_up(const LibraryStep& step);

  /// Marks that a rank of the island has left. Steps that do not involve it continue, with the next rank as the leader.
  void mark_left(int rank);

  /// Handle a peer's message, on the loop.
  void on_request(int from, std::span<const std::byte> body);
  void on_grant(std::span<const std::byte> body);

  /// Sends what a link had no room for, queries a step that has been waiting, and fails the group if a deadline has
  /// passed.
  void poll();

  /// Call it when the group has failed: calls every waiting `go` with the error, and those of later requests.
  void fail(const std::exception_ptr& error);

 private:
  int leader() const { return present_.front(); }
  void request_from_leader(const LibraryStep& step);
  std::vector<int> ranks_of(const LibraryStep& step) const;
  void note_ready(int rank, const LibraryStep& step);
  void grant(const LibraryStep& step);
  void add_granted(const LibraryStep& step);
  void skip_earlier(const LibraryStep& step);
  void run_granted();
  void send_to(int rank, std::vector<std::byte> message);
  void send_unsent();
  void start_polling();

  PeerPorts& ports_;
  const std::vector<int> island_;
  const Hooks hooks_;
  std::mutex mutex_;          // guards the members below; held while a `go` is called, to keep the calls in order
  std::vector<int> present_;  // ranks of the island that have not left
  std::map<LibraryStep, StepRequest> waiting_;     // this rank's requests that are not granted yet
  std::map<LibraryStep, std::vector<int>> ready_;  // by step, not granted yet: the ranks that requested it
  std::deque<LibraryStep> granted_;                // begins with a kOutAfterIn that this rank is not ready for yet
  std::set<std::uint64_t> given_up_;               // numbers of kOutAfterIn steps that may still be granted
  std::uint64_t first_after_in_ = 0;               // number of the first kOutAfterIn that may still be granted
  std::map<int, std::deque<std::vector<std::byte>>> unsent_;  // by rank: what its link had no room for yet
  bool is_polling_ = false;                // poll() will be called, for deadlines and for what is unsent
  std::optional<LibraryStep> waited_for_;  // the kOut waited for at the last poll()
  std::exception_ptr error_;
};

}  // namespace atl::collectives
