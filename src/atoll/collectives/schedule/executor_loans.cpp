// SPDX-License-Identifier: Apache-2.0
// Input and output that lie in the process's arena are lent to peers instead of copied.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <thread>

#include "atoll/collectives/schedule/executor_run.h"
#include "atoll/core/copy.h"
#include "atoll/core/log.h"
#include "atoll/transport/shared_memory.h"

namespace atl::collectives {
namespace {

// Far longer than writing a chunk takes, on a busy machine too.
constexpr std::chrono::milliseconds kPatienceWithWriters{200};

}  // namespace

void Executor::find_lendable(const Run& run) {
  has_lent_ = has_lent_for_result_ = false;
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

// The peer gets whole pages only: see Arena::detach.
bool Executor::is_for_result(const Run& run, const Step& step) const {
  if (!step.for_result || run.call.output.size() <= step.range.segment) return false;
  const Segment& input = run.call.input[step.range.segment];
  if (run.call.output[step.range.segment].data != input.data) return false;
  const auto page = transport::page_bytes();
  const auto begin = reinterpret_cast<std::uintptr_t>(input.data);
  const auto first = (begin + page - 1) / page * page;
  const auto last = (begin + input.bytes) / page * page;
  return begin + step.range.offset >= first && begin + step.range.offset + step.range.bytes <= last;
}

// Sends the step's frame, by lending where the memory, the step and the link allow it. A result that is in the peer's
// memory already needs no bytes.
bool Executor::try_pass(const Run& run, const Step& step, transport::FrameHeader& header,
                        std::span<const std::byte> payload) {
  transport::Channel& to = channel(step.peer, step.flow);
  if (step.flow == Flow::kDown && written_[static_cast<std::size_t>(step.peer)] == step.position + 1) {
    header.where = transport::Payload::kThere;
    return to.try_lend(header, payload, {}).has_value();
  }
  const transport::ArenaPlace* const place = step.lends && to.can_lend() ? lendable(step.range) : nullptr;
  if (place == nullptr) return to.try_send(header, payload);
  header.where = is_for_result(run, step) ? transport::Payload::kForResult : transport::Payload::kLent;
  const auto where = to.try_lend(header, payload, {place->slab, place->offset + step.range.offset});
  if (!where || *where == transport::Payload::kHere) return where.has_value();
  has_lent_ = true;
  has_lent_for_result_ = has_lent_for_result_ || *where == transport::Payload::kForResult;
  split_.bytes_lent += payload.size();
  return true;
}

// Collects in results_ where peers have lent memory for the step's result, which must not be revoked until
// release_results(). Returns false, with nothing claimed, if a peer has revoked it.
bool Executor::claim_results(const Run& run, const Step& step) {
  results_.clear();
  if (!step.final) return true;
  const std::span sources(run.schedule.sources.data() + step.first_source, step.source_count);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].peer < 0) continue;
    transport::Channel& from = channel(sources[i].peer, step.flow);
    written_[static_cast<std::size_t>(sources[i].peer)] = 0;
    if (from.front()->header.where != transport::Payload::kForResult) continue;
    std::byte* const memory = from.begin_write();
    if (memory == nullptr) {
      release_results(step, sources.first(i));
      return false;
    }
    results_.push_back(memory);
    written_[static_cast<std::size_t>(sources[i].peer)] = step.position + 1;
  }
  return true;
}

void Executor::release_results(const Step& step, std::span<const Source> sources) noexcept {
  for (const Source& source : sources) {
    if (source.peer >= 0 && written_[static_cast<std::size_t>(source.peer)] != 0)
      channel(source.peer, step.flow).end_write();
  }
}

// Folds sources_ into the step's range and into the memory that peers have lent for it. Returns false if that has been
// revoked.
bool Executor::fold_sources(const Run& run, const Step& step) {
  constexpr std::size_t kBlock = 4096;  // stays in the nearest cache until it has been copied
  Fold how = run.fold;
  how.premultiply = step.raw && run.call.reduce_op == ReduceOp::kPremulSum;
  how.divisor = step.final && run.call.reduce_op == ReduceOp::kAvg ? topology_.size : 0;
  const std::span<const std::byte* const> sources(sources_.data(), step.source_count);
  std::byte* const to = run.at(step.range, scratch_.data());
  fold(how, sources, to, 0);  // throws here if the reduction is invalid, and not on another thread
  if (!claim_results(run, step)) return false;
  threads_.share(step.range.bytes, [&](std::size_t begin, std::size_t end) {
    static thread_local std::vector<const std::byte*> part;
    const std::size_t block = results_.empty() ? end - begin : kBlock;
    for (std::size_t at = begin; at < end; at += block) {
      const std::size_t bytes = std::min(block, end - at);
      part.assign(sources.begin(), sources.end());
      for (const std::byte*& source : part) source += at;
      fold(how, part, to + at, bytes / run.element_bytes);
      for (std::byte* const result : results_) copy_bytes(result + at, to + at, bytes);
    }
  });
  release_results(step, {run.schedule.sources.data() + step.first_source, step.source_count});
  return true;
}

bool Executor::has_returned(int peer, Flow flow) const {
  transport::Channel* const known = channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
  return known == nullptr || known->has_returned();
}

bool Executor::have_returned(const Run& run) const {
  return !has_lent_ || std::ranges::all_of(run.schedule.peers, [&](int peer) {
    return has_returned(peer, Flow::kUp) && has_returned(peer, Flow::kDown);
  });
}

// After an error: no peer writes into this rank's memory once this returns, nor uses what it reads there.
void Executor::end_loans(const Run& run) noexcept {
  if (!has_lent_) return;
  for (transport::Channel* const channel : channels_) {
    if (channel != nullptr) channel->revoke();
  }
  const auto written_range = [](const transport::Channel* channel) {
    return channel == nullptr ? std::nullopt : channel->written_range();
  };
  const auto is_written = [&](const transport::Channel* channel) { return written_range(channel).has_value(); };
  const auto limit = Deadline::after(kPatienceWithWriters);
  while (std::ranges::any_of(channels_, is_written) && !limit.expired()) std::this_thread::yield();
  // The memory of a call from a device holds copies, which nothing uses any more.
  const bool keep_content = run.call.progress == nullptr;
  for (const transport::Channel* const channel : channels_) {
    try {
      if (const auto range = written_range(channel)) ports_.endpoint().options().arena->detach(*range, keep_content);
    } catch (const std::exception& error) {
      log(LogLevel::kError,
          run.where(ports_.rank()) + " has failed, and a stopped peer may still write its result: " + error.what());
    }
  }
}

}  // namespace atl::collectives
