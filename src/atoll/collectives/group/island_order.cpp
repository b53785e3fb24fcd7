// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/island_order.h"

#include <algorithm>
#include <utility>

#include "atoll/collectives/control_message.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::milliseconds kNextSend{1};
constexpr std::chrono::milliseconds kNextLook{100};
constexpr std::size_t kMaxGivenUp = 1024;  // older ones were given up on all ranks

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
    ask_leader(step);
    if (!has_deadline && unsent_.empty()) return;
  }
  begin_looking();
}

void IslandOrder::ask_leader(const LibraryStep& step) {
  if (step.kind == LibraryStep::Kind::kOutAfterIn) return leader() == ports_.rank() ? grant(step) : go_on();
  if (leader() == ports_.rank()) return note_ready(ports_.rank(), step);
  tell(leader(), encode(ports_.group_id(), ControlType::kStepRequest, step));
}

// What it has granted has come by now: whoever leaves says so after that.
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
    for (const LibraryStep& step : steps) ask_leader(step);
    if (unsent_.empty()) return;
  }
  begin_looking();  // the link to the next leader may be opening
}

void IslandOrder::give_up(const LibraryStep& step) {
  const std::lock_guard lock(mutex_);
  if (error_ || step.number < first_after_in_) return;
  given_up_.insert(step.number);
  if (given_up_.size() > kMaxGivenUp) given_up_.erase(given_up_.begin());
  go_on();
}

bool IslandOrder::cancel(const LibraryStep& step, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  auto found = waiting_.extract(step);
  if (found.empty()) return false;
  ready_.erase(step);
  found.mapped().go(error);
  return true;
}

void IslandOrder::hear_request(int from, std::span<const std::byte> body) {
  const auto step = decode_step(body);
  if (!step) return;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    note_ready(from, *step);
    if (unsent_.empty()) return;
  }
  begin_looking();
}

void IslandOrder::hear_grant(std::span<const std::byte> body) {
  const auto step = decode_step(body);
  if (!step) return;
  const std::lock_guard lock(mutex_);
  do_granted(*step);
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

// A rank requests alike steps in their order. So of those before one that all have requested, whichever is not granted yet never
// will be: its operation was refused.
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
    rank == ports_.rank() ? do_granted(step) : tell(rank, encode(ports_.group_id(), ControlType::kStepGrant, step));
  }
}

void IslandOrder::do_granted(const LibraryStep& step) {
  granted_.push_back(step);
  go_on();
}

// A step that is not there has been cancelled or given up; a kOutAfterIn may still come.
void IslandOrder::go_on() {
  while (!error_ && !granted_.empty()) {
    const LibraryStep step = granted_.front();
    const bool is_after_in = step.kind == LibraryStep::Kind::kOutAfterIn;
    pass_over_earlier(step);
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

// Requests of alike steps before it wait in vain: see note_ready().
void IslandOrder::pass_over_earlier(const LibraryStep& step) {
  auto first = waiting_.lower_bound(LibraryStep{step.kind, step.sender, step.receiver, 0});
  while (first != waiting_.end() && is_alike(first->first, step) && first->first.number < step.number) {
    const auto passed_over = waiting_.extract(first++);
    passed_over.mapped().go(std::make_exception_ptr(
        Error(ErrorKind::kMismatch, "an operation that another rank has refused was to use the island's library")));
  }
}

void IslandOrder::tell(int rank, std::vector<std::byte> message) {
  const auto queue = unsent_.find(rank);
  transport::Link* link = ports_.link_if_open(rank);
  if (!link) {
    ports_.watch(rank);
    link = ports_.link_if_open(rank);
  }
  if (queue == unsent_.end() && link && link->send_control(message)) return;
  unsent_[rank].push_back(std::move(message));
}

void IslandOrder::send_what_waits() {
  for (auto queue = unsent_.begin(); queue != unsent_.end();) {
    auto& messages = queue->second;
    transport::Link* link = ports_.link_if_open(queue->first);
    while (!messages.empty() && link && link->send_control(messages.front())) messages.pop_front();
    queue = messages.empty() ? unsent_.erase(queue) : std::next(queue);
  }
}

void IslandOrder::begin_looking() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_looking_, true)) return;
  }
  hooks_.look_later(kNextSend);
}

void IslandOrder::look() {
  std::string late;
  bool has_deadline = false;
  bool is_unsent = false;
  std::optional<LibraryStep> asked;
  {
    const std::lock_guard lock(mutex_);
    send_what_waits();
    is_unsent = !unsent_.empty();
    for (const auto& [step, request] : waiting_) {
      has_deadline = has_deadline || !request.deadline.is_never();
      if (request.deadline.expired()) late = request.timed_out;
    }
    const auto first = waiting_.lower_bound(LibraryStep{LibraryStep::Kind::kOut, -1, -1, 0});
    std::optional<LibraryStep> waited_for;
    if (first != waiting_.end() && first->first.kind == LibraryStep::Kind::kOut) waited_for = first->first;
    if (waited_for == waited_for_) asked = waited_for;
    waited_for_ = waited_for;
    is_looking_ = late.empty() && (has_deadline || is_unsent);
    if (!is_looking_ && late.empty()) return;
  }
  if (!late.empty()) return hooks_.fail(Error(ErrorKind::kTimeout, late));
  if (asked) hooks_.ask(*asked);
  hooks_.look_later(is_unsent ? kNextSend : kNextLook);
}

}  // namespace atl::collectives
