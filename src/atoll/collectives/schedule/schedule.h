// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/topology.h"
#include "atoll/collectives/types.h"

namespace atl::collectives {

/// The memory that a step uses. Input and output are lists of segments (one for all_reduce and broadcast, one per rank
/// for the gathering and scattering operations; the caller cuts a flat tensor into segments). In an in-place call, an
/// output segment *is* the matching input segment.
enum class Space : std::uint8_t { kInput, kOutput, kScratch };

struct Range {
  Space space = Space::kInput;
  std::uint32_t segment = 0;  ///< 0 for scratch
  std::uint64_t offset = 0;   ///< bytes from the segment's start
  std::uint64_t bytes = 0;
};

/// The two flows of a group between a pair of ranks. Contributions travel up towards owners, results down from them.
enum class Flow : std::uint8_t { kUp = 0, kDown = 1 };

enum class StepKind : std::uint8_t {
  kSend,     ///< pass `range` to `peer` in one frame on `flow`; blocked while the channel has no credit
  kReceive,  ///< copy the next frame from `peer` on `flow` into `range`; blocked until it has arrived
  kReduce,   ///< fold `sources` in order into `range`; blocked until every peer's frame has arrived
  kCopy,     ///< copy `from` to `range` (nothing when they are the same memory)
};

/// A source of a kReduce step: the next frame of a peer, or local memory when peer < 0.
struct Source {
  int peer = -1;
  Range local;
};

struct Step {
  StepKind kind = StepKind::kCopy;
  Flow flow = Flow::kUp;
  bool raw = false;          ///< kReduce: sources are contributions as the ranks gave them (PREMUL_SUM multiplies here)
  bool final = false;        ///< kReduce: the result is the owner's (AVG divides here)
  bool past_caches = false;  ///< kReceive, kCopy: nothing in this operation reads the result again
  bool lends = false;        ///< kSend: `range` keeps its content until the peer has used it, so it need not be copied
  /// kSend that lends: in an in-place call the step that folds this contribution, if it is final, may write the result
  /// there; the frame of the result then carries no bytes.
  bool for_result = false;
  int peer = -1;
  Range range;
  Range from;                      ///< kCopy
  std::uint32_t first_source = 0;  ///< kReduce: into Schedule::sources
  std::uint32_t source_count = 0;
  std::uint64_t count = 0;     ///< elements of the message, which both ends know: sent in the frame header and compared
  std::uint64_t position = 0;  ///< bytes from the message's start; sent and compared too
  /// The step runs only after lane `after_lane` has completed its first `after_steps` steps; -1: no such condition.
  int after_lane = -1;
  std::uint32_t after_steps = 0;
};

/// The steps of one lane run in order; lanes run concurrently. All sends of one (peer, flow) are in one lane, and all
/// its receives (kReceive and kReduce sources) are in one lane, so frames leave and arrive in lane order.
struct Lane {
  std::uint32_t first = 0;  ///< into Schedule::steps
  std::uint32_t count = 0;
  bool bridge = false;  ///< its peers are in other islands (for time accounting)
};

/// One rank's part of one collective. Immutable after it is built; execution allocates nothing.
struct Schedule {
  std::string algorithm;  ///< "owners", "exchange", "star", ... as in docs/algorithms.md
  std::vector<Step> steps;
  std::vector<Source> sources;
  std::vector<Lane> lanes;
  std::vector<int> peers;  ///< ranks this one exchanges frames with, ascending
  std::uint64_t scratch_bytes = 0;
  bool lends = false;                   ///< a step does
  std::uint64_t sent_bytes_inside = 0;  ///< payload this rank sends to its own island
  std::uint64_t sent_bytes_bridge = 0;  ///< and to others

  /// Returns the sources of a kReduce; nothing for other steps.
  std::span<const Source> sources_of(const Step& step) const noexcept {
    return {sources.data() + step.first_source, step.source_count};
  }
};

/// The call to schedule; equal on all ranks, except for kAllToAll, where each rank knows only its own counts.
struct Shape {
  Operation operation = Operation::kAllReduce;
  DataType dtype = DataType::kFloat32;
  int root = -1;  ///< broadcast, reduce, gather, scatter
  /// Elements per segment. all_reduce, broadcast, reduce, barrier: one. all_gather, gather: by contributing rank.
  /// reduce_scatter, scatter: by receiving rank. all_to_all: what this rank sends to each rank.
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> receive_counts;  ///< all_to_all: what this rank receives from each rank
  /// This rank's island reduces and spreads with its own library: only the bridge's part is scheduled, on the ranges
  /// that chunks.h names. Equal on the ranks of an island; not for gather, scatter and all_to_all.
  bool library_inside = false;
  bool operator==(const Shape&) const = default;
};
/// Segments of (input, output) by operation, n ranks, this rank r:
///   all_reduce, barrier   1, 1          broadcast      1, 1 (the same memory; only the root's content counts)
///   reduce                1, 1 (output at the root only; on other ranks it is empty, and the executor uses scratch)
///   all_gather            1, n          gather         1, n at the root, else 0
///   reduce_scatter        n, 1          scatter        n at the root else 0, 1
///   all_to_all            n, n

struct ScheduleLimits {
  std::uint64_t max_payload = std::uint64_t{256} << 10;  ///< largest payload of one frame; equal on all ranks
  std::uint64_t window = std::uint64_t{1} << 20;         ///< smallest channel window, for the deadlock check
  std::uint64_t small_bytes = 4096;                      ///< up to this size the low-latency schedules are used
  std::uint64_t min_lent = std::uint64_t{32} << 10;  ///< frames of fewer bytes are copied even if they could be lent
};

/// Builds rank `rank`'s steps. Pure: equal arguments give equal schedules. Throws Error(kInvalidArgument) if the shape
/// does not fit the operation.
Schedule build_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits = {});

/// Checks all ranks' schedules together symbolically: runs them on sets of contributions instead of numbers, with
/// bounded channels. Returns an empty string, or a description of the first fault: an element that lacks a contribution
/// or holds one twice, contributions folded in an order other than that of docs/algorithms.md, a frame that meets the
/// wrong step, a read of memory that another, unordered step writes, a broken lane rule, or a deadlock with each rank's
/// blocked steps, or lent memory that changes before the peer has used it. `shapes[r]` is rank r's shape (all equal
/// except for all_to_all). Checks in-place and out-of-place calls together. Memory grows with the square of the number
/// of lanes of all ranks: meant for small worlds and short schedules.
std::string check_schedules(const Topology& topology, const std::vector<Shape>& shapes,
                            const std::vector<Schedule>& schedules, const ScheduleLimits& limits = {});

/// Returns a human-readable listing, one line per step, grouped by lane (the first `max_steps` of each lane).
std::string print_schedule(const Schedule& schedule, std::size_t max_steps = 16);

/// Returns a description of one step: "send 4096 bytes at 0 to rank 2 up from input 0 + 0".
std::string describe_step(const Schedule& schedule, const Step& step);

/// Returns this rank's costs in one line: algorithm, bytes inside and over the bridge, frames, steps, lanes, peers,
/// scratch memory.
std::string describe_cost(const Schedule& schedule);

}  // namespace atl::collectives
