// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/island_order.h"

#include <algorithm>
#include <utility>

#include "atoll/collectives/control_message.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::milliseconds kNextSend{1};
constexpr std::chrono::milliseconds kNextPoll{100};
constexpr std::size_t kMaxGivenUp = 1024;  // older steps were given up on all ranks

bool is_alike(const LibraryStep& a, const LibraryStep& b) {
  return a.kind == b.kind && a.sender == b.sender && a.receiver == b.receiver;
}

}  // namespace

IslandOrder::IslandOrder(PeerPorts& ports, std::vector<int> island, Hooks hooks)
    : ports_(ports), island_(std::move(island)), hooks_(std::move(hooks)), present_(island_) {}

void IslandOrder::open_link() {
  const std::lock_guard lock(mutex_);
  if (leader() != ports_.rank()) ports_.watch(leader());
}

std::vector<int> IslandOrder::ranks_of(const LibraryStep& step) const {
  if (step.kind == LibraryStep::Kind::kMessage) return {step.sender, step.receiver};
  return island_;
}

void IslandOrder::request(StepRequest request) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return request.go(error_);
    const LibraryStep step = request.step;
    const bool has_deadline = !request.deadline.is_never();
    waiting_.insert_or_assign(step, std::move(request));
    request_from_leader(step);
    if (!has_deadline && unsent_.empty()) return;
  }
  start_polling();
}

void IslandOrder::request_from_leader(const LibraryStep& step) {
  if (step.kind == LibraryStep::Kind::kOutAfterIn) return leader() == ports_.rank() ? grant(step) : run_granted();
  if (leader() == ports_.rank()) return note_ready(ports_.rank(), step);
  send_to(leader(), encode(ports_.group_id(), ControlType::kStepRequest, step));
}

// Its grants have arrived by now, because a rank's notice that it leaves is sent after all else.
void IslandOrder::mark_left(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ || rank == ports_.rank()) return;
    const bool was_leader = rank == leader();
    present_.erase(std::remove(present_.begin(), present_.end(), rank), present_.end());
    unsent_.erase(rank);
    if (!was_leader) return;
    std::vector<LibraryStep> steps;
    for (const auto& [step, request] : waiting_) steps.push_back(step);
    for (const LibraryStep& step : steps) request_from_leader(step);
    if (unsent_.empty()) return;
  }
  start_polling();  // the link to the next leader may still be opening
}

void IslandOrder::give_up(const LibraryStep& step) {
  const std::lock_guard lock(mutex_);
  if (error_ || step.number < first_after_in_) return;
  given_up_.insert(step.number);
  if (given_up_.size() > kMaxGivenUp) given_up_.erase(given_up_.begin());
  run_granted();
}

bool IslandOrder::cancel(const LibraryStep& step, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  auto found = waiting_.extract(step);
  if (found.empty()) return false;
  ready_.erase(step);
  found.mapped().go(error);
  return true;
}

void IslandOrder::on_request(int from, std::span<const std::byte> body) {
  const auto step = decode_step(body);
  if (!step) return;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    note_ready(from, *step);
    if (unsent_.empty()) return;
  }
  start_polling();
}

void IslandOrder::on_grant(std::span<const std::byte> body) {
  const auto step = decode_step(body);
  if (!step) return;
  const std::lock_guard lock(mutex_);
  add_granted(*step);
}

void IslandOrder::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = error;
  ready_.clear();
  granted_.clear();
  unsent_.clear();
  for (auto& [step, request] : std::exchange(waiting_, {})) request.go(error);
}

// A rank requests steps of one kind in order. So an earlier step that is not granted when all ranks have requested this
// one never will be: its operation was refused.
void IslandOrder::note_ready(int rank, const LibraryStep& step) {
  if (step.kind == LibraryStep::Kind::kOutAfterIn) return;
  const auto ranks = ranks_of(step);
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return;
  auto& known = ready_[step];
  if (std::find(known.begin(), known.end(), rank) == known.end()) known.push_back(rank);
  if (known.size() < ranks.size()) return;
  auto first = ready_.lower_bound(LibraryStep{step.kind, step.sender, step.receiver, 0});
  while (first != ready_.end() && is_alike(first->first, step) && first->first.number <= step.number) {
    first = ready_.erase(first);
  }
  grant(step);
}

void IslandOrder::grant(const LibraryStep& step) {
  for (const int rank : ranks_of(step)) {
    rank == ports_.rank() ? add_granted(step) : send_to(rank, encode(ports_.group_id(), ControlType::kStepGrant, step));
  }
}

void IslandOrder::add_granted(const LibraryStep& step) {
  granted_.push_back(step);
  run_granted();
}

// A step without a request has been cancelled or given up, except that a kOutAfterIn may still be requested.
void IslandOrder::run_granted() {
  while (!error_ && !granted_.empty()) {
    const LibraryStep step = granted_.front();
    const bool is_after_in = step.kind == LibraryStep::Kind::kOutAfterIn;
    skip_earlier(step);
    auto found = waiting_.extract(step);
    if (found.empty() && is_after_in && step.number >= first_after_in_ && !given_up_.contains(step.number)) return;
    granted_.pop_front();
    if (is_after_in) {
      first_after_in_ = std::max(first_after_in_, step.number + 1);
      given_up_.erase(given_up_.begin(), given_up_.lower_bound(first_after_in_));
    }
    if (!found.empty()) found.mapped().go(nullptr);
  }
}

// Earlier requests of the same kind will never be granted: see note_ready().
void IslandOrder::skip_earlier(const LibraryStep& step) {
  auto first = waiting_.lower_bound(LibraryStep{step.kind, step.sender, step.receiver, 0});
  while (first != waiting_.end() && is_alike(first->first, step) && first->first.number < step.number) {
    const auto skipped = waiting_.extract(first++);
    skipped.mapped().go(std::make_exception_ptr(
        Error(ErrorKind::kMismatch, "another rank has refused an operation that was to use the island's library")));
  }
}

void IslandOrder::send_to(int rank, std::vector<std::byte> message) {
  const auto queue = unsent_.find(rank);
  transport::Link* link = ports_.link_if_open(rank);
  if (!link) {
    ports_.watch(rank);
    link = ports_.link_if_open(rank);
  }
  if (queue == unsent_.end() && link && link->send_control(message)) return;
  unsent_[rank].push_back(std::move(message));
}

void IslandOrder::send_unsent() {
  for (auto queue = unsent_.begin(); queue != unsent_.end();) {
    auto& messages = queue->second;
    transport::Link* link = ports_.link_if_open(queue->first);
    while (!messages.empty() && link && link->send_control(messages.front())) messages.pop_front();
    queue = messages.empty() ? unsent_.erase(queue) : std::next(queue);
  }
}

void IslandOrder::start_polling() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_polling_, true)) return;
  }
  hooks_.poll_later(kNextSend);
}

void IslandOrder::poll() {
  std::string late;
  bool has_deadline = false;
  bool is_unsent = false;
  std::optional<LibraryStep> stalled;
  {
    const std::lock_guard lock(mutex_);
    send_unsent();
    is_unsent = !unsent_.empty();
    for (const auto& [step, request] : waiting_) {
      has_deadline = has_deadline || !request.deadline.is_never();
      if (request.deadline.expired()) late = request.timed_out;
    }
    const auto first = waiting_.lower_bound(LibraryStep{LibraryStep::Kind::kOut, -1, -1, 0});
    std::optional<LibraryStep> waited_for;
    if (first != waiting_.end() && first->first.kind == LibraryStep::Kind::kOut) waited_for = first->first;
    if (waited_for == waited_for_) stalled = waited_for;
    waited_for_ = waited_for;
    is_polling_ = late.empty() && (has_deadline || is_unsent);
    if (!is_polling_ && late.empty()) return;
  }
  if (!late.empty()) return hooks_.fail(Error(ErrorKind::kTimeout, late));
  if (stalled) hooks_.query(*stalled);
  hooks_.poll_later(is_unsent ? kNextSend : kNextPoll);
}

}  // namespace atl::collectives
