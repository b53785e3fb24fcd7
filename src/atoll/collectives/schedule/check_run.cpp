// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/check_run.h"

#include <algorithm>
#include <iterator>

#include "atoll/collectives/schedule/chunks.h"

namespace atl::collectives::detail {
namespace {

std::uint64_t frame_cost(std::uint64_t payload_bytes) { return 64 + (payload_bytes + 63) / 64 * 64; }

bool takes_frames(const Step& step) { return step.kind == StepKind::kReceive || step.kind == StepKind::kReduce; }

// Returns the rank whose contribution output `segment` of `rank` must hold after an operation that only moves data, and
// which of that rank's segments it is.
std::pair<int, std::uint32_t> expected_copy(const Shape& shape, int rank, std::uint32_t segment) {
  switch (shape.operation) {
    case Operation::kBroadcast: return {shape.root, 0};
    case Operation::kScatter: return {shape.root, static_cast<std::uint32_t>(rank)};
    case Operation::kAllToAll: return {static_cast<int>(segment), static_cast<std::uint32_t>(rank)};
    default: return {static_cast<int>(segment), 0};
  }
}

// Returns whether this rank gets these bytes of its output from the schedule, and not from the island's library.
bool is_ours(const std::vector<Range>& led, std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes) {
  return std::any_of(led.begin(), led.end(), [&](const Range& range) {
    return range.segment == segment && offset >= range.offset && offset + bytes <= range.offset + range.bytes;
  });
}

}  // namespace

CheckRun::CheckRun(const Topology& topology, const std::vector<Shape>& shapes, const std::vector<Schedule>& schedules,
                   const ScheduleLimits& limits)
    : topology_(topology),
      shapes_(shapes),
      schedules_(schedules),
      limits_(limits),
      ranks_(schedules.size()),
      is_awake_(schedules.size(), false) {
  std::uint32_t lanes = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankState& state = ranks_[rank];
    state.first_lane = lanes;
    lanes += static_cast<std::uint32_t>(schedules[rank].lanes.size());
    const Operation operation = shapes[rank].operation;
    for (std::size_t world = 0; world < kWorlds; ++world) {
      const bool in_place = world != kOutOfPlace;
      // all_to_all is never called in place, broadcast always.
      if (operation == (in_place ? Operation::kAllToAll : Operation::kBroadcast)) continue;
      if (world == kInPlaceForResults && operation != Operation::kAllReduce) continue;
      state.worlds[world].emplace(topology, shapes[rank], static_cast<int>(rank), in_place,
                                  schedules[rank].scratch_bytes, limits, expressions_);
    }
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].lanes.resize(schedules[rank].lanes.size());
    for (LaneState& lane : ranks_[rank].lanes) lane.known.assign(lanes, 0);
    for (const Step& step : schedules[rank].steps) {
      if (step.after_lane >= 0)
        ranks_[rank].lanes[static_cast<std::size_t>(step.after_lane)].known_after[step.after_steps];
    }
  }
}

std::string CheckRun::run() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) wake(static_cast<int>(rank));
  while (!awake_.empty() && fault_.empty()) {
    const int rank = awake_.front();
    awake_.pop_front();
    is_awake_[static_cast<std::size_t>(rank)] = false;
    advance(rank);
  }
  if (fault_.empty()) fault_ = describe_deadlock();
  if (fault_.empty()) fault_ = check_results();
  return fault_;
}

void CheckRun::wake(int rank) {
  if (is_awake_[static_cast<std::size_t>(rank)]) return;
  is_awake_[static_cast<std::size_t>(rank)] = true;
  awake_.push_back(rank);
}

// Carries out all steps that are ready.
void CheckRun::advance(int rank) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const Schedule& schedule = schedules_[static_cast<std::size_t>(rank)];
  for (bool moved = true; moved && fault_.empty();) {
    moved = false;
    for (std::uint32_t lane = 0; lane < schedule.lanes.size(); ++lane) {
      while (fault_.empty() && state.lanes[lane].done < schedule.lanes[lane].count) {
        const Step& step = schedule.steps[schedule.lanes[lane].first + state.lanes[lane].done];
        if (!is_ready(rank, step)) break;
        if (fault_.empty()) do_step(rank, lane, step);
        if (!fault_.empty()) {
          fault_ = "rank " + std::to_string(rank) + ", lane " + std::to_string(lane) + ", " +
                   describe_step(schedule, step) + ": " + fault_;
        }
        moved = true;
      }
    }
  }
}

std::vector<int> CheckRun::senders(int rank, const Step& step) const {
  if (step.kind == StepKind::kReceive) return {step.peer};
  std::vector<int> peers;
  for (const Source& source : schedules_[static_cast<std::size_t>(rank)].sources_of(step)) {
    if (source.peer >= 0) peers.push_back(source.peer);
  }
  return peers;
}

// Sets fault_ if a frame has arrived that this step does not expect.
bool CheckRun::is_ready(int rank, const Step& step) {
  const RankState& state = ranks_[static_cast<std::size_t>(rank)];
  if (step.after_lane >= 0 && state.lanes[static_cast<std::size_t>(step.after_lane)].done < step.after_steps)
    return false;
  if (step.kind == StepKind::kSend)
    return channel(rank, step.peer, step.flow).used + frame_cost(step.range.bytes) <= limits_.window;
  if (!takes_frames(step)) return true;
  for (const int peer : senders(rank, step)) {
    const Channel& from = channel(peer, rank, step.flow);
    if (from.frames.empty()) return false;
    const Frame& frame = from.frames.front();
    if (frame.bytes != step.range.bytes || frame.count != step.count || frame.position != step.position) {
      fault_ = "meets a frame of rank " + std::to_string(peer) + " with " + std::to_string(frame.bytes) + " bytes at " +
               std::to_string(frame.position) + " of a message of " + std::to_string(frame.count) +
               " elements, expected one of " + std::to_string(step.count);
      return true;
    }
  }
  return true;
}

void CheckRun::do_step(int rank, std::uint32_t lane, const Step& step) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  LaneState& own = state.lanes[lane];
  const Doing doing{rank, state, own, step, {state.first_lane + lane, own.done + 1, own.known}};
  learn(doing);
  Frame sent;
  for (std::size_t world = 0; world < kWorlds; ++world) {
    if (state.worlds[world]) move_values(doing, world, &sent);
  }
  if (takes_frames(step)) pop_frames(rank, step);
  if (step.kind == StepKind::kSend) {
    sent.bytes = step.range.bytes;
    sent.count = step.count;
    sent.position = step.position;
    sent.cost = frame_cost(sent.bytes);
    if (step.lends) sent.lent = step.range;
    sent.for_result = step.for_result;
    const auto written = state.written_position.find(step.peer);
    sent.is_there =
        step.flow == Flow::kDown && written != state.written_position.end() && written->second == step.position;
    sent.known = own.known;
    Channel& to = channel(rank, step.peer, step.flow);
    to.used += sent.cost;
    to.frames.push_back(std::move(sent));
    wake(step.peer);
  }
  ++own.done;
  if (const auto wanted = own.known_after.find(own.done); wanted != own.known_after.end()) wanted->second = own.known;
}

// Adds to the lane's knowledge that of the step's frames and of its condition, and the step itself.
void CheckRun::learn(const Doing& doing) {
  const Step& step = doing.step;
  Knowledge& known = doing.lane.known;
  const auto join = [&](const Knowledge& other) {
    for (std::size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], other[i]);
  };
  known[doing.now.lane] = doing.now.step;
  if (step.after_lane >= 0 && step.after_steps > 0) {
    join(doing.state.lanes[static_cast<std::size_t>(step.after_lane)].known_after.at(step.after_steps));
  }
  if (!takes_frames(step)) return;
  for (const int peer : senders(doing.rank, step)) join(frame_from(peer, doing).known);
}

void CheckRun::move_values(const Doing& doing, std::size_t world, Frame* sent) {
  const Step& step = doing.step;
  Memory& memory = *doing.state.worlds[world];
  std::string fault;
  switch (step.kind) {
    case StepKind::kSend: sent->runs[world] = memory.read(step.range, doing.now, fault); break;
    case StepKind::kReceive:
      if (world == kInPlaceForResults && frame_from(step.peer, doing).is_there) break;
      memory.write(step.range, payload(step.peer, doing, world), doing.now, fault);
      break;
    case StepKind::kReduce: {
      const Runs folded = gather_and_fold(doing, world);
      if (fault_.empty()) memory.write(step.range, folded, doing.now, fault);
      if (fault_.empty() && world == kInPlaceForResults && step.final) write_results(doing, folded);
      break;
    }
    case StepKind::kCopy:
      if (memory.same(step.from, step.range)) break;
      if (memory.overlap_askew(step.from, step.range)) fault = "copies between overlapping memory";
      memory.write(step.range, memory.read(step.from, doing.now, fault), doing.now, fault);
      break;
  }
  if (fault_.empty()) fault_ = fault;
}

// Returns the values of the frame at the head of the channel. A lent one is read where it lies, at this step.
Runs CheckRun::payload(int peer, const Doing& doing, std::size_t world) {
  const Frame& frame = frame_from(peer, doing);
  if (frame.lent.bytes == 0) return frame.runs[world];
  return ranks_[static_cast<std::size_t>(peer)].worlds[world]->read(frame.lent, doing.now, fault_);
}

// Writes the result into the contributions that were lent for it.
void CheckRun::write_results(const Doing& doing, const Runs& folded) {
  for (const int peer : senders(doing.rank, doing.step)) {
    const Frame& frame = frame_from(peer, doing);
    if (!frame.for_result) continue;
    ranks_[static_cast<std::size_t>(peer)].worlds[kInPlaceForResults]->write(frame.lent, folded, doing.now, fault_);
    doing.state.written_position[peer] = doing.step.position;
  }
}

Runs CheckRun::gather_and_fold(const Doing& doing, std::size_t world) {
  const Step& step = doing.step;
  Memory& memory = *doing.state.worlds[world];
  std::vector<Runs> sources;
  for (const Source& source : schedules_[static_cast<std::size_t>(doing.rank)].sources_of(step)) {
    if (source.peer >= 0) {
      sources.push_back(payload(source.peer, doing, world));
      continue;
    }
    if (memory.overlap_askew(source.local, step.range)) fault_ = "folds into memory that overlaps a source";
    sources.push_back(memory.read(source.local, doing.now, fault_));
  }
  if (!fault_.empty()) return {};
  return fold_runs(expressions_, sources, step.raw, step.final, fault_);
}

void CheckRun::pop_frames(int rank, const Step& step) {
  for (const int peer : senders(rank, step)) {
    Channel& from = channel(peer, rank, step.flow);
    from.used -= from.frames.front().cost;
    from.frames.pop_front();
    wake(peer);
  }
}

std::string CheckRun::describe_deadlock() const {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Schedule& schedule = schedules_[rank];
    for (std::size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
      const std::uint32_t done = ranks_[rank].lanes[lane].done;
      if (done == schedule.lanes[lane].count) continue;
      text += (text.empty() ? "deadlock: rank " : "; rank ") + std::to_string(rank) + ", lane " + std::to_string(lane) +
              ": " + describe_step(schedule, schedule.steps[schedule.lanes[lane].first + done]);
    }
  }
  return text;
}

std::string CheckRun::check_results() {
  for (const auto& [key, channel] : channels_) {
    if (channel.frames.empty()) continue;
    const auto size = static_cast<std::uint64_t>(schedules_.size());
    return "rank " + std::to_string(key / 2 % size) + " does not take a frame of rank " +
           std::to_string(key / 2 / size);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto outputs = segment_bytes(topology_, shapes_[rank], static_cast<int>(rank), Space::kOutput);
    for (const auto& world : ranks_[rank].worlds) {
      for (std::uint32_t segment = 0; world && segment < outputs.size(); ++segment) {
        const std::string fault = check_segment(static_cast<int>(rank), segment, world->output(segment));
        if (!fault.empty()) return "rank " + std::to_string(rank) + ", output " + std::to_string(segment) + fault;
      }
    }
  }
  return "";
}

std::string CheckRun::check_segment(int rank, std::uint32_t segment, const Runs& runs) {
  const Shape& shape = shapes_[static_cast<std::size_t>(rank)];
  std::vector<Range> led;
  std::uint64_t missing = 0;
  if (shape.library_inside) led = led_outputs(topology_, shape, rank, limits_);
  for (const Range& range : led) missing += range.segment == segment ? range.bytes : 0;
  const bool all_equal = shape.operation == Operation::kAllReduce || shape.operation == Operation::kBarrier;
  std::uint64_t offset = 0;
  for (const Run& run : runs) {
    const bool ours = !shape.library_inside || is_ours(led, segment, offset, run.bytes);
    std::string fault = ours ? check_run(rank, segment, offset, run.value) : "";
    if (fault.empty() && ours && all_equal) fault = check_agreement(offset, run);
    if (!fault.empty()) return " + " + std::to_string(offset) + ": " + fault;
    if (ours && shape.library_inside) missing -= run.bytes;
    offset += run.bytes;
  }
  return missing == 0 ? "" : ": " + std::to_string(missing) + " bytes that this rank leads were not written";
}

// Checks the value at `offset` of an output segment.
std::string CheckRun::check_run(int rank, std::uint32_t segment, std::uint64_t offset, const Value& value) {
  const Shape& shape = shapes_[static_cast<std::size_t>(rank)];
  const bool reduction = has_reduction(shape.operation) || shape.operation == Operation::kBarrier;
  const std::uint32_t reduced = shape.operation == Operation::kReduceScatter ? static_cast<std::uint32_t>(rank) : 0;
  if (value.expression == Expressions::kNothing) return "nothing was written";
  const auto [source, source_segment] = reduction ? std::pair(0, reduced) : expected_copy(shape, rank, segment);
  if (value.segment != source_segment || value.origin != offset) {
    return "holds bytes from offset " + std::to_string(value.origin) + " of segment " + std::to_string(value.segment);
  }
  if (reduction) {
    const auto [judged, is_new] = judged_.try_emplace(value.expression);
    if (is_new) judged->second = expressions_.check_result(topology_, value.expression);
    return judged->second;
  }
  if (value.expression == expressions_.contribution(source)) return "";
  return "holds " + expressions_.print(value.expression) + " instead of the contribution of rank " +
         std::to_string(source);
}

// Equal expressions mean equal bits.
std::string CheckRun::check_agreement(std::uint64_t offset, const Run& run) {
  const std::uint64_t end = offset + run.bytes;
  auto next = agreed_.upper_bound(offset);
  if (next != agreed_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > offset) --next;
  while (offset < end) {
    if (next == agreed_.end() || next->first > offset) {
      const std::uint64_t gap_end = next == agreed_.end() ? end : std::min(end, next->first);
      agreed_.emplace(offset, Run{gap_end - offset, run.value});
      offset = gap_end;
      continue;
    }
    if (next->second.value.expression != run.value.expression) return "is folded differently than on other ranks";
    offset = std::min(end, next->first + next->second.bytes);
    ++next;
  }
  return "";
}

}  // namespace atl::collectives::detail

namespace atl::collectives {

std::string check_schedules(const Topology& topology, const std::vector<Shape>& shapes,
                            const std::vector<Schedule>& schedules, const ScheduleLimits& limits) {
  const auto size = static_cast<std::size_t>(topology.size);
  if (shapes.size() != size || schedules.size() != size) return "there must be one shape and one schedule per rank";
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::string fault =
        detail::check_rules(topology, shapes[rank], static_cast<int>(rank), schedules[rank], limits);
    if (!fault.empty()) return "rank " + std::to_string(rank) + ", " + fault;
  }
  return detail::CheckRun(topology, shapes, schedules, limits).run();
}

}  // namespace atl::collectives
