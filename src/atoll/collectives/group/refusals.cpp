// SPDX-License-Identifier: Apache-2.0
// Refusals: a rank takes no part in an operation or a message. The others are notified, and the group continues if
// nothing has been started.
#include "atoll/collectives/group/impl.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::seconds kMaxOpening{2};  // for the link to a peer to open

std::string name_of(std::uint64_t number) { return "operation #" + std::to_string(number); }

std::string describe_message(int rank, int peer, bool sends, const std::string& why) {
  return "a message " + std::string(sends ? "to" : "from") + " rank " + std::to_string(peer) + " on rank " +
         std::to_string(rank) + ": rank " + std::to_string(peer) + " refused to " + (sends ? "receive" : "send") +
         " it: " + why;
}

}  // namespace

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
