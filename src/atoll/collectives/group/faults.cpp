// SPDX-License-Identifier: Apache-2.0
// How a group ends with an error, and how a rank refuses an operation or a message: the others are notified, and the
// group continues if nothing has been started.
#include "atoll/collectives/group/impl.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

// Tags with the top bit set are reserved for the group; c10d's are non-negative 32-bit numbers.
constexpr std::uint64_t kOwnTag = std::uint64_t{1} << 63;

constexpr std::chrono::seconds kMaxOpening{2};  // for the link to a peer to open

std::string name_of(std::uint64_t number) { return "operation #" + std::to_string(number); }

std::string describe_message(int rank, int peer, bool sends, const std::string& why) {
  return "a message " + std::string(sends ? "to" : "from") + " rank " + std::to_string(peer) + " on rank " +
         std::to_string(rank) + ": rank " + std::to_string(peer) + " refused to " + (sends ? "receive" : "send") +
         " it: " + why;
}

}  // namespace

void Group::Impl::fail(const Error& error) noexcept {
  try {
    if (!failure.set(error)) return;
    context->endpoint().doorbell().ring_all();
    context->impl().keep_report(encode(ports.group_id(), ControlType::kError, report_of(error)));
    notify_peers(ControlType::kError, error);
    messages.fail_pending();
    island_order.fail(failure.get());
    std::vector<std::function<void()>> listeners;
    {
      const std::lock_guard lock(mutex);
      changed.notify_all();
      listeners.swap(failure_listeners);
    }
    for (const auto& listener : listeners) listener();
    // Last, because the folder may be on a server that has died with a rank, and no other waiter may be held up by
    // that.
    if (error.kind() != ErrorKind::kAborted) write_dump(dump_folder(), "failure");
  } catch (const std::exception& broken) {
    log(LogLevel::kError, std::string("while reporting an error: ") + broken.what());
  }
}

std::exception_ptr Group::Impl::failure_of(const Signature& signature, std::uint64_t count) const {
  try {
    std::rethrow_exception(failure.get());
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find(" #") != std::string::npos) return failure.get();
    const std::string where = describe(signature, count) + " on rank " + std::to_string(options.rank);
    return std::make_exception_ptr(Error(error.kind(), where + ": " + text));
  }
}

void Group::Impl::notify_peers(ControlType type, const Error& error) noexcept {
  const auto message = encode(ports.group_id(), type, report_of(error));
  // Also over links that this group has not used: a peer may have opened one to wait for this rank.
  for (transport::Link* link : context->endpoint().links()) {
    if (ports.rank_of(link->peer()) < 0) continue;
    // A peer that knows that this rank has left waits for nothing more, so the notice must not overtake the rank's
    // frames.
    type == ControlType::kLeft ? link->send_control_after_frames(message) : link->send_control(message);
  }
}

// A report reaches only peers that have a link by then, and a peer may wait for frames of another operation than this
// rank does, which never arrive. So a rank whose wait has stalled sends an inquiry with the operation that it has
// called.
void Group::Impl::send_inquiry(int peer, bool about_collective) {
  Inquiry inquiry;
  if (about_collective) {
    const std::lock_guard lock(mutex);
    inquiry.call = find_issued(current.sequence);
  }
  if (transport::Link* link = ports.link_if_open(peer)) link->send_control(encode(ports.group_id(), inquiry));
}

void Group::Impl::answer_inquiry(transport::Link& link, int from, std::span<const std::byte> message) {
  const auto inquiry = decode_inquiry(message);
  if (!inquiry) return;
  if (inquiry->call) {
    const std::uint64_t number = number_of(inquiry->call->signature.sequence);
    if (const auto refusal = refusals.find(number)) {
      link.send_control(encode(ports.group_id(), RefusalMessage{number, refusal->rank, refusal->why}));
      return;
    }
    const auto mine = find_issued(inquiry->call->signature.sequence);
    if (mine && *mine != *inquiry->call) {
      fail(Error(ErrorKind::kMismatch,
                 describe_mismatch(describe(mine->signature, mine->count), options.rank,
                                   describe(inquiry->call->signature, inquiry->call->count), from)));
    }
  }
  bool left = false;
  {
    const std::lock_guard lock(mutex);
    left = is_shut_down;
  }
  if (!failure.is_set()) return;
  try {
    std::rethrow_exception(failure.get());
  } catch (const Error& error) {
    const auto report = encode(ports.group_id(), left ? ControlType::kLeft : ControlType::kError, report_of(error));
    left ? link.send_control_after_frames(report) : link.send_control(report);
  }
}

void Group::Impl::on_control(transport::Link& link, std::span<const std::byte> message) {
  const int from = ports.rank_of(link.peer());
  const auto type = control_type(message);
  if (from < 0 || !type) return;
  const auto body = message.subspan(1);
  switch (*type) {
    case ControlType::kInquiry: return answer_inquiry(link, from, body);
    case ControlType::kRollCall: return answer_roll_call(link, body);
    case ControlType::kClock: return on_clock_message(link, from, body);
    case ControlType::kLeft:
      if (decode_report(body)) mark_left(from);
      return;
    case ControlType::kRefusal:
      if (const auto heard = decode_refusal(body)) on_refusal(heard->number, {heard->rank, heard->why});
      return;
    case ControlType::kWithdrawal:
      if (const auto heard = decode_withdrawal(body)) on_withdrawal(from, *heard);
      return;
    case ControlType::kStepRequest: return island_order.on_request(from, body);
    case ControlType::kStepGrant: return island_order.on_grant(body);
    case ControlType::kError: break;
  }
  const auto report = decode_report(body);
  if (!report) return;
  const std::string& text = report->text;
  const bool relayed = text.rfind("rank ", 0) == 0 && text.find(" reported: ") != std::string::npos;
  fail(Error(report->kind, relayed ? text : "rank " + std::to_string(from) + " reported: " + text));
}

void Group::Impl::mark_left(int peer) {
  executor.mark_left(peer);
  messages.mark_left(peer);
  island_order.mark_left(peer);
  context->endpoint().doorbell().ring_all();
}

void Group::Impl::on_link_failed(const transport::PeerId& peer, const Error& error, bool closed_in_order) {
  const int from = ports.rank_of(peer);
  if (from < 0) return;
  if (closed_in_order) {
    mark_left(from);
  } else {
    const char* where = topology.same_island(options.rank, from) ? " (inside the island)" : " (over the bridge)";
    fail(Error(error.kind(), error.what() + std::string(where)));
  }
}

void Group::Impl::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  failure.throw_if_set();
  std::uint64_t tag = 0;
  {
    const std::lock_guard lock(mutex);
    tag = kOwnTag | next_barrier_tag++;
  }
  if (options.rank == 0) return collect_check_ins(tag, timeout, wait_all_ranks);
  // Rank 0 knows best which ranks are missing, so the others wait a little longer than it does.
  const auto grace = std::min<std::chrono::milliseconds>(timeout / 2, std::chrono::milliseconds(1000));
  std::mutex wait_mutex;
  std::condition_variable arrived;
  int open = 2;
  std::exception_ptr error;
  const auto finish = [&](std::exception_ptr e) {
    const std::lock_guard lock(wait_mutex);
    if (e) error = e;
    --open;
    arrived.notify_all();
  };
  const auto deadline = Deadline::after(timeout + grace);
  messages.send(0, tag, DataType::kUInt8, {}, deadline, finish);
  messages.receive(0, tag, DataType::kUInt8, {}, deadline, [&](std::exception_ptr e, int) { finish(e); });
  std::unique_lock lock(wait_mutex);
  arrived.wait(lock, [&] { return open == 0; });
  if (error) std::rethrow_exception(error);
}

void Group::Impl::collect_check_ins(std::uint64_t tag, std::chrono::milliseconds timeout, bool wait_all_ranks) {
  struct Roll {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<bool> here;
    std::size_t count = 1;  // ranks that are here or never will be
  };
  auto roll = std::make_shared<Roll>();
  roll->here.resize(static_cast<std::size_t>(options.size));
  for (int rank = 1; rank < options.size; ++rank) {
    messages.receive(rank, tag, DataType::kUInt8, {}, Deadline::never(), [roll, rank](std::exception_ptr e, int) {
      const std::lock_guard lock(roll->mutex);
      roll->here[static_cast<std::size_t>(rank)] = !e;
      ++roll->count;
      roll->arrived.notify_all();
    });
  }
  const auto deadline = Deadline::after(timeout);
  std::string missing;
  bool left = false;  // the missing ranks have left the group
  {
    std::unique_lock lock(roll->mutex);
    const auto all = [&] { return roll->count == static_cast<std::size_t>(options.size); };
    while (!all() && !failure.is_set() && !deadline.expired())
      roll->arrived.wait_for(lock, deadline.remaining(std::chrono::milliseconds(100)));
    left = all();
    for (int rank = 1; rank < options.size; ++rank) {
      if (roll->here[static_cast<std::size_t>(rank)]) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      if (!wait_all_ranks) break;
    }
  }
  if (!missing.empty() && left) {
    fail(Error(ErrorKind::kPeerLost, "monitored_barrier on rank 0: rank " + missing + " has left the group"));
  } else if (!missing.empty()) {
    fail(Error(ErrorKind::kTimeout, "monitored_barrier on rank 0 timed out after " + std::to_string(timeout.count()) +
                                        " ms: rank " + missing + " did not reach it"));
  }
  failure.throw_if_set();
  for (int rank = 1; rank < options.size; ++rank) {
    messages.send(rank, tag, DataType::kUInt8, {}, deadline, [](std::exception_ptr) {});
  }
}

void Group::Impl::refuse(const std::string& why) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex);
    number = next_number++;
  }
  if (failure.is_set()) return;
  const Refusal refusal{options.rank, why};
  if (refusals.note(number, refusal)) forward_refusal(number, refusal);
}

std::uint64_t Group::Impl::commit() {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex);
    number = next_number++;
    committed[number % committed.size()] = number;
  }
  if (const auto refusal = refusals.find(number)) {
    throw OperationRefused(ErrorKind::kMismatch,
                           name_of(number) + " on rank " + std::to_string(options.rank) + ": " + describe(*refusal));
  }
  return number;
}

void Group::Impl::on_refusal(std::uint64_t number, const Refusal& refusal) {
  bool is_committed = false;
  {
    const std::lock_guard lock(mutex);
    if (!refusals.note(number, refusal)) return;
    is_committed = committed[number % committed.size()] == number;
  }
  if (is_committed) {
    return fail(Error(ErrorKind::kMismatch, name_of(number) + ": " + describe(refusal) +
                                                "; the device's library had already started it on rank " +
                                                std::to_string(options.rank) + ", so the group cannot continue"));
  }
  context->endpoint().doorbell().ring_all();
  forward_refusal(number, refusal);
}

// Not every rank has a link to the one that refuses, so each rank forwards the refusal, once. A rank without a link
// sends an inquiry when it waits.
void Group::Impl::forward_refusal(std::uint64_t number, const Refusal& refusal) noexcept {
  try {
    const auto message = encode(ports.group_id(), RefusalMessage{number, refusal.rank, refusal.why});
    for (transport::Link* link : context->endpoint().links()) {
      if (ports.rank_of(link->peer()) >= 0) link->send_control(message);
    }
  } catch (const std::exception& broken) {
    log(LogLevel::kError, std::string("while forwarding a refusal: ") + broken.what());
  }
}

// Both ends count the same messages, because libraries deliver in the order of issue.
std::uint64_t Group::Impl::commit_message(int peer, bool sends) {
  const std::lock_guard lock(mutex);
  CarriedMessages& known = carried[{peer, sends}];
  const std::uint64_t number = known.next++;
  const auto refused = known.refused.find(number);
  if (refused != known.refused.end()) {
    const std::string why = refused->second;
    known.refused.erase(refused);
    known.refused_here.insert(number);
    throw OperationRefused(ErrorKind::kMismatch, describe_message(options.rank, peer, sends, why));
  }
  return number;
}

void Group::Impl::refuse_committed_message(int peer, bool sends, const std::string& why) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex);
    CarriedMessages& known = carried[{peer, sends}];
    number = known.next++;
    if (known.refused.erase(number) > 0) return;  // refused by both ends
    known.refused_here.insert(number);
    if (known.refused_here.size() > Refusals::kMaxRemembered) {
      known.refused_here.erase(known.refused_here.begin());
    }
  }
  ports.watch(peer);
  const auto word = encode(ports.group_id(), WithdrawalMessage{sends, number, why});
  const auto limit = Deadline::after(kMaxOpening);
  while (!ports.link_if_open(peer)->send_control(word) && !limit.expired()) {  // the link may still be opening
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Group::Impl::on_withdrawal(int peer, const WithdrawalMessage& message) {
  const bool sends = !message.sends;  // this rank's end
  {
    const std::lock_guard lock(mutex);
    CarriedMessages& known = carried[{peer, sends}];
    if (known.refused_here.erase(message.number) > 0) return;
    if (message.number >= known.next) {
      if (known.refused.size() < Refusals::kMaxRemembered) known.refused[message.number] = message.why;
      return;
    }
  }
  const std::string text = describe_message(options.rank, peer, sends, message.why);
  const LibraryStep step{LibraryStep::Kind::kMessage, sends ? options.rank : peer, sends ? peer : options.rank,
                         message.number};
  if (island_order.cancel(step, std::make_exception_ptr(OperationRefused(ErrorKind::kMismatch, text)))) return;
  fail(Error(ErrorKind::kMismatch,
             text + "; the device's library had already started it here, so the group cannot continue"));
}

}  // namespace atl::collectives
