// SPDX-License-Identifier: Apache-2.0
// What a rank does while it waits: it finds out which ranks are missing, and reports them.
#include "atoll/collectives/group/impl.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::microseconds kSpinForInput{50};

std::chrono::milliseconds since(std::int64_t when_us) {
  return std::chrono::milliseconds(std::max<std::int64_t>(EventRing::now_us() - when_us, 0) / 1000);
}

}  // namespace

RankProgress Group::Impl::progress_in(std::uint64_t sequence) const {
  RankProgress here;
  here.rank = options.rank;
  const std::lock_guard lock(mutex);
  const auto event = events.find(sequence);
  if (!event && number_of(sequence) + 1 >= next_number) {
    const auto last = events.last();
    if (!last) return here;
    here.has_last = true;
    here.last = last->signature.operation;
    here.last_sequence = last->signature.sequence;
    here.last_done = last->state == EventRing::State::kCompleted;
    here.since = since(here.last_done ? last->finished_us : last->issued_us);
    return here;
  }
  if (!event || event->state == EventRing::State::kCompleted || event->state == EventRing::State::kFailed) {
    here.stage = Stage::kDone;
    if (event) here.since = since(event->finished_us);
  } else if (event->state == EventRing::State::kStarted) {
    here.stage = Stage::kInside;
    here.since = since(event->started_us);
  } else {
    const bool is_its_turn = busy && current.sequence == sequence;
    here.stage = is_its_turn ? Stage::kInput : Stage::kQueued;
    here.since = since(event->issued_us);
    here.has_last = !is_its_turn && busy;
    here.last = current.operation;
    here.last_sequence = current.sequence;
  }
  return here;
}

void Group::Impl::call_roll(transport::Link& link, std::uint64_t sequence, bool wants_reply) {
  const auto message = roll_call.message(sequence, progress_in(sequence), wants_reply, Clock::now());
  link.send_control(encode(ports.group_id(), message));
}

void Group::Impl::answer_roll_call(transport::Link& link, std::span<const std::byte> message) {
  const auto heard = decode_roll_call(message);
  if (!heard) return;
  roll_call.record(*heard, Clock::now());
  if (heard->wants_reply) call_roll(link, heard->sequence, /*wants_reply=*/false);
}

void Group::Impl::on_stall(const Stall& stall) {
  for (const int peer : stall.peers) {
    send_inquiry(peer, /*about_collective=*/true);
    if (transport::Link* link = ports.link_if_open(peer)) call_roll(*link, stall.sequence, /*wants_reply=*/true);
  }
  if (const auto line = roll_call.report(stall, Clock::now())) log(LogLevel::kWarning, *line);
}

void Group::Impl::on_stall_over(const Stall& stall) {
  if (const auto line = roll_call.finish(stall, Clock::now())) log(LogLevel::kWarning, *line);
}

// Returns the ranks that contribute to the input that the island's library provides. This rank may have no link to them
// yet.
std::vector<int> Group::Impl::ranks_providing_input(const Call& call) {
  std::vector<int> ranks;
  for (int rank = 0; call.library_inside && rank < options.size; ++rank) {
    if (rank == options.rank || !topology.same_island(options.rank, rank)) continue;
    ports.watch(rank);
    ranks.push_back(rank);
  }
  return ranks;
}

// Polls, because a thread cannot sleep on a device's events and on the group's failure at once.
void Group::Impl::await_input(const Call& call, const Signature& signature, Deadline deadline) {
  const auto begin = Clock::now();
  const std::uint64_t elements = call.input.empty() ? 0 : call.input[0].bytes / size_of(call.dtype);
  std::vector<int> providers;
  const auto stall = [&] {
    providers = ranks_providing_input(call);
    return Stall{signature.sequence, describe(signature, elements), providers, begin, begin};
  };
  int checks = 0;
  auto check_at = begin + until_next_check(checks);
  while (!call.progress->is_loaded()) {
    failure.throw_if_set();
    refusals.throw_if_refused(signature, elements, options.rank);
    const auto now = Clock::now();
    if (deadline.expired()) {
      const std::string why = explain(stall());
      throw Error(ErrorKind::kTimeout, stall().name + " on rank " + std::to_string(options.rank) +
                                           " timed out: waiting for its input to arrive from the device" +
                                           (why.empty() ? "" : "; " + why));
    }
    if (now >= check_at) {
      on_stall(stall());
      check_at = now + until_next_check(++checks);
    }
    if (now - begin < kSpinForInput) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPauseForInput);
    }
  }
  failure.throw_if_set();  // the operations of an aborted library seem to have ended
  if (checks > 0) on_stall_over(stall());
}

}  // namespace atl::collectives
