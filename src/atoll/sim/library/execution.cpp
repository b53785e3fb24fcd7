// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/execution.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "atoll/sim/library/compare.h"
#include "atoll/sim/library/reduce.h"

namespace atl::sim {
namespace {

constexpr std::size_t kSmall = 32 << 10;       // bytes; up to this size all ranks fold everything
constexpr std::size_t kSliceAlignment = 1024;  // elements

std::int64_t in_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Returns when an operation ends: all ranks must have begun, and the longest time counts.
Clock::time_point end_of(const std::vector<Half>& halves) {
  std::int64_t begin = 0;
  std::int64_t duration = 0;
  for (const Half& half : halves) {
    begin = std::max(begin, half.record.begin_ns);
    duration = std::max(duration, half.record.duration_ns);
  }
  return Clock::time_point(std::chrono::nanoseconds(begin + duration));
}

}  // namespace

Execution::Execution(Peers& peers, const MemoryOf& memory_of, int rank, int size, const Call& call)
    : peers_(peers),
      control_(peers.control()),
      memory_of_(memory_of),
      rank_(rank),
      size_(size),
      call_(call),
      deadline_(Deadline::after(call.timeout)) {}

Clock::time_point Execution::run(Clock::time_point begin) {
  require_whole();
  switch (call_.operation) {
    case Operation::kSend: return send(begin);
    case Operation::kReceive: return receive(begin);
    default: return collective(begin);
  }
}

void Execution::publish(const Half& half, Clock::time_point begin) {
  for (const Region& region : call_.input) {
    if (region.bytes > 0) peers_.announce(region.device, memory_of_(region.device));
  }
  half.record = {call_.sequence,
                 call_.operation,
                 call_.dtype,
                 call_.reduce_op,
                 call_.root,
                 in_ns(begin),
                 call_.duration.count(),
                 0,
                 static_cast<std::uint32_t>(call_.input.size())};
  for (const Region& region : call_.output) half.record.output_bytes += region.bytes;
  std::copy(call_.input.begin(), call_.input.end(), half.regions.begin());
  control_.advance(half, call_.sequence, Stage::kPublished);
}

Clock::time_point Execution::collective(Clock::time_point begin) {
  const Half mine = control_.collective(call_.sequence, rank_);
  publish(mine, begin);
  meet(Stage::kPublished);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) check_agreement(call_, rank_, peer, control_.collective(call_.sequence, peer));
  }
  std::vector<Half> all;
  for (int peer = 0; peer < size_; ++peer) all.push_back(control_.collective(call_.sequence, peer));
  const auto end = end_of(all);
  move();
  require_whole();
  control_.advance(mine, call_.sequence, Stage::kDone);
  if (!folds_everything()) meet(Stage::kDone);  // in that case all ranks have read everything by their last meeting
  return end;
}

Clock::time_point Execution::send(Clock::time_point begin) {
  const Half mine = control_.sender(rank_, call_.root);
  const Half theirs = control_.receiver(rank_, call_.root);
  publish(mine, begin);
  wait_for({{call_.root, theirs}}, Stage::kDone, call_.sequence);
  const auto end = end_of({mine, theirs});
  control_.advance(mine, call_.sequence, Stage::kDone);
  return end;
}

Clock::time_point Execution::receive(Clock::time_point begin) {
  const Half mine = control_.receiver(call_.root, rank_);
  const Half theirs = control_.sender(call_.root, rank_);
  if (call_.sequence > 0)
    wait_for({{call_.root, theirs}}, Stage::kDone, call_.sequence - 1);  // it has read the previous record
  publish(mine, begin);
  wait_for({{call_.root, theirs}}, Stage::kPublished, call_.sequence);
  check_message(call_, rank_, theirs);
  const Region& output = call_.output.at(0);
  if (output.bytes > 0) std::memmove(own(output), source(call_.root, theirs.regions[0]), output.bytes);
  require_whole();
  const auto end = end_of({mine, theirs});
  control_.advance(mine, call_.sequence, Stage::kDone);
  return end;
}

// A rank that gave up may have released the memory that was just read here.
void Execution::require_whole() const {
  if (const auto error = control_.error()) throw Error(*error);
}

void Execution::meet(Stage stage) {
  std::vector<std::pair<int, Half>> others;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) others.emplace_back(peer, control_.collective(call_.sequence, peer));
  }
  wait_for(others, stage, call_.sequence);
}

void Execution::wait_for(const Halves& halves, Stage stage, std::uint64_t sequence) {
  const auto is_there = [&](const auto& half) { return Control::has_reached(half.second, sequence, stage); };
  const auto is_settled = [&](const auto& half) { return is_there(half) || control_.has_left(half.first); };
  const auto outcome = control_.wait([&] { return std::all_of(halves.begin(), halves.end(), is_settled); }, deadline_);
  if (std::all_of(halves.begin(), halves.end(), is_there)) return;  // a rank that has left did its part before
  Halves missing;
  std::copy_if(halves.begin(), halves.end(), std::back_inserter(missing),
               [&](const auto& half) { return !is_there(half); });
  lost(missing, stage, outcome);
}

void Execution::lost(const Halves& halves, Stage stage, Control::Outcome outcome) const {
  if (outcome == Control::Outcome::kFailed) {
    throw Error(control_.error().value_or(Error(ErrorKind::kInternal, "the communicator failed without an error")));
  }
  std::string missing;
  std::string gone;
  for (const auto& [peer, half] : halves) {
    missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
    if (control_.has_left(peer)) gone += (gone.empty() ? "" : ", ") + std::to_string(peer);
  }
  const std::string for_what = stage == Stage::kPublished ? " to call it" : " to finish it";
  if (outcome == Control::Outcome::kReady) {
    throw Error(ErrorKind::kPeerLost, "rank " + std::to_string(rank_) + " needs rank " + gone + for_what +
                                          ", which has left the group (shutdown)");
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(call_.timeout).count();
  throw Error(ErrorKind::kTimeout, "rank " + std::to_string(rank_) + " timed out after " + std::to_string(waited) +
                                       " ms waiting for rank " + missing + for_what);
}

void Execution::move() {
  const auto own_part = static_cast<std::size_t>(rank_);
  switch (call_.operation) {
    case Operation::kAllReduce: return all_reduce();
    case Operation::kReduce:
      if (rank_ == call_.root) reduce_to(call_.input.at(0), 0);
      return;
    case Operation::kReduceScatter: return reduce_to(call_.output.at(0), own_part);
    case Operation::kBroadcast: return read_part(call_.root, 0, call_.input.at(0));
    case Operation::kScatter: return read_part(call_.root, own_part, call_.output.at(0));
    case Operation::kAllGather:
    case Operation::kGather:
    case Operation::kAllToAll: break;
    default: return;
  }
  const std::size_t part = call_.operation == Operation::kAllToAll ? own_part : 0;
  for (std::size_t peer = 0; peer < call_.output.size(); ++peer) {
    read_part(static_cast<int>(peer), part, call_.output[peer]);
  }
}

bool Execution::folds_everything() const {
  return call_.operation == Operation::kAllReduce && call_.input.at(0).bytes > 0 && call_.input.at(0).bytes <= kSmall;
}

void Execution::all_reduce() {
  const Region& buffer = call_.input.at(0);
  if (buffer.bytes == 0 || size_ == 1) return;
  const Half mine = control_.collective(call_.sequence, rank_);
  const std::size_t width = element_size(call_.dtype);
  const std::size_t count = buffer.bytes / width;
  Sources from = sources(0);
  if (folds_everything()) {
    std::vector<std::byte> result(buffer.bytes);
    reduce(call_.reduce_op, call_.dtype, from, result.data(), count);
    control_.advance(mine, call_.sequence, Stage::kReduced);
    meet(Stage::kReduced);
    std::memcpy(own(buffer), result.data(), result.size());
    return;
  }
  const std::size_t ranks = static_cast<std::size_t>(size_);
  const std::size_t slice = (count / ranks + kSliceAlignment) / kSliceAlignment * kSliceAlignment;
  const auto first_of = [&](std::size_t rank) { return std::min(rank * slice, count); };
  const auto me = static_cast<std::size_t>(rank_);
  Sources at_slice = from;
  for (auto& address : at_slice) address += first_of(me) * width;
  reduce(call_.reduce_op, call_.dtype, at_slice, own(buffer) + first_of(me) * width, first_of(me + 1) - first_of(me));
  control_.advance(mine, call_.sequence, Stage::kReduced);
  meet(Stage::kReduced);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    const std::size_t first = first_of(peer) * width;
    const std::size_t bytes = first_of(peer + 1) * width - first;
    if (peer != me && bytes > 0) std::memcpy(own(buffer) + first, from[peer] + first, bytes);
  }
}

void Execution::reduce_to(const Region& output, std::size_t part) {
  if (output.bytes == 0) return;
  reduce(call_.reduce_op, call_.dtype, sources(part), own(output), output.bytes / element_size(call_.dtype));
}

void Execution::read_part(int peer, std::size_t part, const Region& output) {
  if (output.bytes == 0) return;
  const std::byte* const from = source(peer, region_of(peer, part));
  if (from != own(output)) std::memmove(own(output), from, output.bytes);
}

std::byte* Execution::own(const Region& region) const { return memory_of_(region.device).at_offset(region.offset); }

Region Execution::region_of(int peer, std::size_t part) const {
  return control_.collective(call_.sequence, peer).regions[part];
}

const std::byte* Execution::source(int peer, const Region& region) {
  if (peer == rank_) return own(region);
  const auto outcome = control_.wait([&] { return peers_.knows(peer, region.device); }, deadline_);
  if (outcome == Control::Outcome::kFailed) throw Error(control_.error().value());
  if (outcome == Control::Outcome::kTimeout) {
    throw Error(ErrorKind::kTimeout, "rank " + std::to_string(rank_) + " timed out waiting for the memory of rank " +
                                         std::to_string(peer) + "'s device " + std::to_string(region.device));
  }
  return peers_.at(peer, region);
}

Execution::Sources Execution::sources(std::size_t part) {
  Sources all;
  for (int peer = 0; peer < size_; ++peer) all.push_back(source(peer, region_of(peer, part)));
  return all;
}

}  // namespace atl::sim
