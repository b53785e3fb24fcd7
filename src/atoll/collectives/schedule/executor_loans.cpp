// SPDX-License-Identifier: Apache-2.0
// Input and output that lie in the process's arena are lent to peers instead of copied.
#include <algorithm>
#include <iterator>

#include "atoll/collectives/schedule/executor_run.h"

namespace atl::collectives {

void Executor::find_lendable(const Run& run) {
  has_lent_ = false;
  for (auto& places : lendable_) places.clear();
  const auto& arena = ports_.endpoint().options().arena;
  if (!arena || !run.schedule.lends) return;
  const auto place_of = [&](const Segment& segment) { return arena->find(segment.data, segment.bytes); };
  std::ranges::transform(run.call.input, std::back_inserter(lendable_[0]), place_of);
  std::ranges::transform(run.call.output, std::back_inserter(lendable_[1]), place_of);
}

const transport::ArenaPlace* Executor::lendable(const Range& range) const {
  const auto& places = lendable_[range.space == Space::kInput ? 0 : 1];
  return range.segment < places.size() && places[range.segment] ? &*places[range.segment] : nullptr;
}

// Sends the step's frame, by lending where the memory, the step and the link allow it.
bool Executor::try_pass(const Step& step, const transport::FrameHeader& header, std::span<const std::byte> payload) {
  transport::Channel& to = channel(step.peer, step.flow);
  const transport::ArenaPlace* const place = step.lends && to.can_lend() ? lendable(step.range) : nullptr;
  if (place == nullptr) return to.try_send(header, payload);
  if (!to.try_lend(header, payload, {place->segment, place->offset + step.range.offset})) return false;
  has_lent_ = true;
  split_.bytes_lent += payload.size();
  return true;
}

bool Executor::has_returned(int peer, Flow flow) const {
  transport::Channel* const known =
      channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
  return known == nullptr || known->has_returned();
}

bool Executor::have_returned(const Run& run) const {
  return !has_lent_ || std::ranges::all_of(run.schedule.peers, [&](int peer) {
    return has_returned(peer, Flow::kUp) && has_returned(peer, Flow::kDown);
  });
}

void Executor::revoke(const Run& run) noexcept {
  if (!has_lent_) return;
  for (const int peer : run.schedule.peers) {
    for (const Flow flow : {Flow::kUp, Flow::kDown}) {
      transport::Channel* const known =
          channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
      if (known != nullptr) known->revoke();
    }
  }
}

}  // namespace atl::collectives
