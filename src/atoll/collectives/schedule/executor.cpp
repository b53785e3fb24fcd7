// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/executor.h"

#include <algorithm>
#include <cstdio>
#include <ranges>

#include "atoll/collectives/schedule/executor_run.h"
#include "atoll/core/copy.h"

namespace atl::collectives {
namespace {

// A peer's refusal does not travel in its channels, so frames of its next operation may arrive before it.
constexpr std::chrono::milliseconds kNewsTakes{1000};

const transport::Frame* leftover(transport::Channel& channel) {
  try {
    return channel.front();
  } catch (const Error&) {
    return nullptr;  // the peer has closed by now; this operation no longer needs it
  }
}

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

bool is_shared(const Call& call) {
  if (call.library_inside) return false;  // each rank leads a part of the result
  return call.operation == Operation::kAllReduce || call.operation == Operation::kAllGather ||
         call.operation == Operation::kBroadcast;
}

}  // namespace

Executor::Executor(PeerPorts& ports, const Topology& topology, const Failure& failure, const Refusals& refusals,
                   std::chrono::nanoseconds spin, FoldThreads& threads, StallObserver& stalls, bool check_data)
    : ports_(ports),
      topology_(topology),
      failure_(failure),
      refusals_(refusals),
      spin_(spin),
      threads_(threads),
      stalls_(stalls),
      check_data_(check_data),
      channels_(static_cast<std::size_t>(ports.size()) * 2, nullptr),
      results_wait_(static_cast<std::size_t>(ports.size())),
      written_(static_cast<std::size_t>(ports.size())),
      left_(std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(ports.size()))),
      sent_bytes_(std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(ports.size()))) {}

void Executor::mark_left(int peer) noexcept {
  left_[static_cast<std::size_t>(peer)].store(true);
  any_left_.store(true);
}

TimeSplit Executor::time_split() const noexcept {
  return {.total_ns = split_.total_ns,
          .bridge_ns = split_.bridge_ns,
          .operations = split_.operations,
          .bytes_inside = split_.bytes_inside,
          .bytes_bridge = split_.bytes_bridge,
          .bytes_lent = split_.bytes_lent};
}

void Executor::run(const Schedule& schedule, const Call& call, const Signature& signature, Deadline deadline) {
  const auto started = Clock::now();
  const Fold fold{.dtype = call.dtype, .op = call.reduce_op, .factor = call.factor};
  CallProgress* const parts = call.progress && call.progress->comes_in_parts() ? call.progress.get() : nullptr;
  Run run{schedule, call, signature, deadline, fold, size_of(call.dtype), parts, started};
  prepare(run);
  try {
    run_lanes(run);
    check_leftovers(run);
    if (check_data_) remember_result(run);
    if (run.checks > 0) stalls_.on_stall_over(stall_of(run));
  } catch (const OperationRefused&) {
    last_result_ = 0;
    throw;
  } catch (const Error& error) {
    failure_.throw_if_set();  // a peer's report explains more than the closed link that follows it
    if (error.kind() == ErrorKind::kMismatch || error.kind() == ErrorKind::kTimeout) throw;
    throw Error(error.kind(), run.where(ports_.rank()) + ": " + error.what());
  }
  split_.total_ns += elapsed_ns(started);
  split_.operations += 1;
  split_.bytes_inside += schedule.sent_bytes_inside;
  split_.bytes_bridge += schedule.sent_bytes_bridge;
}

void Executor::run_lanes(Run& run) {
  transport::Sleeper sleeper(ports_.endpoint().doorbell().bell(transport::Bell::kCollective), spin_);
  try {
    while (!open_lanes_.empty() || !have_returned(run)) {
      if (advance_lanes(run)) {
        sleeper.reset();
        run.report_at.reset();
      } else {
        wait(run, sleeper);
      }
    }
  } catch (...) {
    end_loans(run);
    throw;
  }
}

void Executor::prepare(Run& run) {
  const Schedule& schedule = run.schedule;
  if (scratch_.size() < schedule.scratch_bytes) scratch_.resize(schedule.scratch_bytes);
  lanes_.resize(std::max(lanes_.size(), schedule.lanes.size()));
  open_lanes_.clear();
  results_wait_.assign(results_wait_.size(), false);  // left over from an operation that failed
  written_.assign(written_.size(), 0);
  results_.reserve(written_.size());
  for (std::uint32_t i = 0; i < schedule.lanes.size(); ++i) {
    lanes_[i] = {0, schedule.lanes[i].count};
    if (schedule.lanes[i].count > 0) open_lanes_.push_back(i);
  }
  const auto most_sources = std::min(schedule.sources.size(), static_cast<std::size_t>(topology_.size) + 1);
  sources_.resize(std::max(sources_.size(), most_sources));
  find_lendable(run);
}

// One step per lane and pass, so that the folds and receives of a block follow its sends while it is still in cache.
bool Executor::advance_lanes(Run& run) {
  bool moved = false;
  run.awaits_input = false;
  for (std::size_t i = 0; i < open_lanes_.size();) {
    const std::uint32_t lane_index = open_lanes_[i];
    LaneState& lane = lanes_[lane_index];
    const Step& step = run.schedule.steps[run.schedule.lanes[lane_index].first + lane.next];
    const bool ready =
        step.after_lane < 0 || lanes_[static_cast<std::size_t>(step.after_lane)].next >= step.after_steps;
    if (ready && try_step(run, step, lane)) {
      moved = true;
      lane.checksum = 0;
      if (++lane.next == lane.count) {
        open_lanes_.erase(open_lanes_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
    }
    ++i;
  }
  return moved;
}

bool Executor::try_step(Run& run, const Step& step, LaneState& lane) {
  switch (step.kind) {
    case StepKind::kSend: return try_send(run, step, lane);
    case StepKind::kReceive: return try_receive(run, step);
    case StepKind::kReduce: return try_reduce(run, step);
    case StepKind::kCopy: {
      const std::byte* from = run.at(step.from, scratch_.data());
      std::byte* to = run.at(step.range, scratch_.data());
      if (from != to) copy_result(step, to, from);
      return true;
    }
  }
  throw Error(ErrorKind::kInternal, "a schedule holds a step of unknown kind");
}

// Results go first: the receiver always takes them, while contributions pile up there if the results that follow from
// them cannot be sent. This keeps both directions of a link busy if ranks own unequal shares of what crosses it.
bool Executor::try_send(Run& run, const Step& step, LaneState& lane) {
  const auto peer = static_cast<std::size_t>(step.peer);
  if (step.flow == Flow::kUp && results_wait_[peer]) return false;
  if (!run.is_loaded(step.range)) {
    run.awaits_input = true;
    return false;
  }
  transport::FrameHeader header;
  header.payload_bytes = static_cast<std::uint32_t>(step.range.bytes);
  header.kind = static_cast<std::uint8_t>(FrameKind::kCollective);
  header.operation = static_cast<std::uint8_t>(run.signature.operation);
  header.dtype = static_cast<std::uint8_t>(run.signature.dtype);
  header.reduce_op = static_cast<std::uint8_t>(run.signature.reduce_op);
  header.attempt = run.signature.attempt;
  header.root = run.signature.root;
  header.sequence = run.signature.sequence;
  header.count = step.count;
  header.offset = step.position;
  const std::byte* data = step.range.bytes > 0 ? run.at(step.range, scratch_.data()) : nullptr;
  if (check_data_) {
    if (lane.checksum == 0) lane.checksum = checksum_of({data, step.range.bytes});
    header.checksum = lane.checksum;
    header.tag = last_result_;
  }
  const bool sent = try_pass(run, step, header, {data, step.range.bytes});
  if (step.flow == Flow::kDown) results_wait_[peer] = !sent;
  if (sent) {
    auto& bytes = sent_bytes_[peer];
    bytes.store(bytes.load(std::memory_order_relaxed) + step.range.bytes, std::memory_order_relaxed);
  }
  return sent;
}

// Returns the frame at the head of the channel; drops frames that the peer sent for an earlier operation that was
// refused.
const transport::Frame* Executor::next_frame(int peer, Flow flow, const Run& run) {
  transport::Channel& from = channel(peer, flow);
  const transport::Frame* frame = from.front();
  while (frame && frame->header.sequence < run.signature.sequence &&
         refusals_.contains(number_of(frame->header.sequence))) {
    from.pop();
    frame = from.front();
  }
  return frame;
}

// Returns whether the peer may have refused this operation: sends an inquiry at once, and waits a while for the answer.
bool Executor::is_ahead(Run& run, int peer, const transport::FrameHeader& header) {
  if (left_[static_cast<std::size_t>(peer)].load()) return false;
  if (header.kind != static_cast<std::uint8_t>(FrameKind::kCollective) || header.attempt != run.signature.attempt ||
      number_of(header.sequence) <= number_of(run.signature.sequence)) {
    return false;
  }
  const auto now = Clock::now();
  if (!run.ahead_since) {
    run.ahead_since = now;
    stalls_.on_peer_ahead(peer);
  }
  return now - *run.ahead_since < kNewsTakes;
}

void Executor::check_ended(const Run& run) const {
  failure_.throw_if_set();
  refusals_.throw_if_refused(run.signature, run.elements(), ports_.rank());
}

// Returns that frame, checked against what this step expects; nullptr if none has arrived yet.
const transport::Frame* Executor::expect(Run& run, int peer, const Step& step) {
  const transport::Frame* frame = next_frame(peer, step.flow, run);
  if (!frame) return nullptr;
  const auto& header = frame->header;
  const Signature& mine = run.signature;
  const bool same_call = header.kind == static_cast<std::uint8_t>(FrameKind::kCollective) &&
                         signature_of(header) == mine && header.count == step.count;
  if (!same_call) {
    if (is_ahead(run, peer, header)) return nullptr;
    throw Error(ErrorKind::kMismatch,
                describe_mismatch(describe(mine, step.count), ports_.rank(), describe(header), peer));
  }
  if (header.offset != step.position || header.payload_bytes != step.range.bytes) {
    throw Error(ErrorKind::kInternal, describe(mine, step.count) + ": rank " + std::to_string(peer) + " sent " +
                                          std::to_string(header.payload_bytes) + " bytes at " +
                                          std::to_string(header.offset) + ", expected " +
                                          std::to_string(step.range.bytes) + " at " + std::to_string(step.position) +
                                          "; the ranks built different schedules, please report this");
  }
  if (header.where == transport::Payload::kThere && !(step.kind == StepKind::kReceive && has_lent_for_result_)) {
    throw Error(ErrorKind::kProtocol, describe(mine, step.count) + ": rank " + std::to_string(peer) +
                                          " sent a frame without its payload, for which this rank has lent no memory");
  }
  if (check_data_) check_last_result(peer, header.tag);
  return channel(peer, step.flow).is_intact() ? frame : nullptr;  // if not, the reason is on its way
}

bool Executor::try_receive(Run& run, const Step& step) {
  const transport::Frame* frame = expect(run, step.peer, step);
  if (!frame) return false;
  transport::Channel& from = channel(step.peer, step.flow);
  std::byte* const to = run.at(step.range, scratch_.data());
  if (frame->header.where != transport::Payload::kThere) copy_result(step, to, frame->payload.data());
  if (!from.is_intact()) return false;
  if (check_data_) check_payload(step, step.peer, frame->header.checksum, checksum_of({to, step.range.bytes}));
  from.pop();
  if (run.parts) run.parts->arrived(step.range.segment, step.range.offset + step.range.bytes);
  return true;
}

void Executor::copy_result(const Step& step, std::byte* to, const std::byte* from) {
  threads_.share(step.range.bytes, [&](std::size_t begin, std::size_t end) {
    step.past_caches ? copy_bytes_streaming(to + begin, from + begin, end - begin)
                     : copy_bytes(to + begin, from + begin, end - begin);
  });
}

bool Executor::try_reduce(Run& run, const Step& step) {
  const auto sources = run.schedule.sources_of(step);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].peer < 0) {
      sources_[i] = run.at(sources[i].local, scratch_.data());
    } else {
      const transport::Frame* frame = expect(run, sources[i].peer, step);
      if (!frame) return false;
      sources_[i] = frame->payload.data();
    }
  }
  for (std::size_t i = 0; check_data_ && i < sources.size(); ++i) {
    if (sources[i].peer < 0) continue;
    transport::Channel& from = channel(sources[i].peer, step.flow);
    const transport::Frame& frame = *from.front();
    if (const auto found = checksum_of(frame.payload); from.is_intact())
      check_payload(step, sources[i].peer, frame.header.checksum, found);
  }
  if (step.range.bytes > 0 && !fold_sources(run, step)) return false;
  const auto is_from_peer = [](const Source& source) { return source.peer >= 0; };
  for (const Source& source : std::views::filter(sources, is_from_peer)) {
    if (!channel(source.peer, step.flow).is_intact()) return false;
  }
  for (const Source& source : std::views::filter(sources, is_from_peer)) channel(source.peer, step.flow).pop();
  return true;
}

// Opens both flows, contributions last: a rank that has contributions of a later operation then also has every earlier
// result, so that check_leftovers finds an unexpected one by the end of the next operation.
void Executor::open_flows(int peer) {
  const auto slot = static_cast<std::size_t>(peer) * 2;
  channels_[slot + static_cast<std::size_t>(Flow::kDown)] = &ports_.open(peer, Port::kDown);
  channels_[slot + static_cast<std::size_t>(Flow::kUp)] = &ports_.open(peer, Port::kUp);
}

// Checks for frames of this operation or an older one that no step took: their sender made another call, for example
// with another root.
void Executor::check_leftovers(const Run& run) {
  for (const int peer : run.schedule.peers) {
    for (const Flow flow : {Flow::kUp, Flow::kDown}) {
      transport::Channel* known = channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
      const transport::Frame* frame = known ? leftover(*known) : nullptr;
      if (!frame || frame->header.sequence > run.signature.sequence) continue;
      if (refusals_.contains(number_of(frame->header.sequence))) continue;
      throw Error(ErrorKind::kMismatch, describe_leftover(describe(frame->header), peer, ports_.rank()));
    }
  }
}

// ATOLL_CHECK_DATA: checksums of data from memory to memory, and of the results that all ranks share.
void Executor::check_payload(const Step& step, int peer, std::uint64_t stated, std::uint64_t found) const {
  if (found == stated) return;
  const std::uint64_t last = step.position + std::max<std::uint64_t>(step.range.bytes, 1) - 1;
  throw Error(ErrorKind::kProtocol, "bytes " + std::to_string(step.position) + " to " + std::to_string(last) +
                                        " from rank " + std::to_string(peer) +
                                        " were changed on the way from its memory to this rank's (checksum " +
                                        hexadecimal(found) + " instead of " + hexadecimal(stated) +
                                        "): memory, a driver or the network between them corrupts data");
}

void Executor::check_last_result(int peer, std::uint64_t theirs) const {
  if (theirs == 0 || last_result_ == 0 || theirs == last_result_) return;
  throw Error(ErrorKind::kInternal, "the results of " + last_name_ + " differ: checksum " + hexadecimal(last_result_) +
                                        " on this rank, " + hexadecimal(theirs) + " on rank " + std::to_string(peer) +
                                        "; the memory of one of them is broken, or this is a bug: please report it");
}

void Executor::remember_result(const Run& run) {
  last_result_ = 0;
  if (!is_shared(run.call)) return;
  result_.begin();
  for (const Segment& segment : run.call.output) result_.add({segment.data, segment.bytes});
  last_result_ = result_.value();
  last_name_ = run.name();
}

}  // namespace atl::collectives
