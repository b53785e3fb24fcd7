// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "atoll/collectives/schedule/chunks.h"
#include "atoll/collectives/schedule/writer.h"
#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

[[noreturn]] void refuse(const Shape& shape, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, std::string("a schedule for ") + to_string(shape.operation) + ": " + why);
}

bool has_one_message(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kBarrier;
}

void check_counts(const Shape& shape, const std::vector<std::uint64_t>& counts, std::size_t expected) {
  if (counts.size() != expected) {
    refuse(shape, std::to_string(counts.size()) + " element counts given, " + std::to_string(expected) + " needed");
  }
  std::uint64_t left = std::numeric_limits<std::int64_t>::max() / size_of(shape.dtype);
  for (const std::uint64_t count : counts) {
    if (count > left) refuse(shape, "the element counts add up to more bytes than memory can hold");
    left -= count;
  }
}

void check_shape(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  if (rank < 0 || rank >= topology.size) {
    refuse(shape, "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(topology.size));
  }
  if (shape.operation == Operation::kSend || shape.operation == Operation::kReceive)
    refuse(shape, "point-to-point messages have no schedule");
  if (has_root(shape.operation) && (shape.root < 0 || shape.root >= topology.size)) {
    refuse(shape, "root " + std::to_string(shape.root) + " is not in a group of " + std::to_string(topology.size));
  }
  const auto size = static_cast<std::size_t>(topology.size);
  check_counts(shape, shape.counts, has_one_message(shape.operation) ? 1 : size);
  if (shape.operation == Operation::kAllToAll) {
    check_counts(shape, shape.receive_counts, size);
    const auto own = static_cast<std::size_t>(rank);
    if (shape.counts[own] != shape.receive_counts[own]) refuse(shape, "a rank's message to itself has two sizes");
  }
  if (shape.library_inside && (is_direct(shape.operation) || !topology.has_leads())) {
    refuse(shape, "an island's library cannot be used for it");
  }
  const std::uint64_t frame = 64 + (limits.max_payload + 63) / 64 * 64;
  if (limits.max_payload < size_of(shape.dtype) || limits.window < frame) {
    refuse(shape, "frames of " + std::to_string(limits.max_payload) + " bytes in a window of " +
                      std::to_string(limits.window) + " bytes cannot carry it");
  }
}

// One message per pair, cut into chunks. Each peer has a lane for the message to it and one for the message from it, so
// that all pairs progress concurrently, starting with the next higher rank.
class DirectBuilder {
 public:
  DirectBuilder(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits)
      : topology_(topology),
        shape_(shape),
        rank_(rank),
        limits_(limits),
        writer_(topology, rank, static_cast<std::size_t>(topology.size), false, limits.min_lent) {}

  Schedule build() {
    const bool gathers = shape_.operation == Operation::kGather;
    const bool scatters = shape_.operation == Operation::kScatter;
    const Flow flow = scatters ? Flow::kDown : Flow::kUp;
    const auto& received = shape_.operation == Operation::kAllToAll ? shape_.receive_counts : shape_.counts;
    const auto is_message = [&](int from, int to) {
      return (!gathers || to == shape_.root) && (!scatters || from == shape_.root);
    };
    const auto here = static_cast<std::uint32_t>(rank_);
    for (int peer = 0; peer < topology_.size; ++peer) {
      const auto there = static_cast<std::uint32_t>(peer);
      const std::uint32_t input = gathers ? 0 : there;
      const std::uint32_t output = scatters ? 0 : there;
      const std::uint64_t sent = shape_.counts[gathers ? here : there];
      const bool sends = is_message(rank_, peer);
      if (sends && peer == rank_) keep(input, output, sent);
      if (sends && peer != rank_) send(peer, flow, input, sent);
      if (peer != rank_ && is_message(peer, rank_)) receive(peer, flow, output, received[scatters ? here : there]);
    }
    return writer_.finish("direct");
  }

 private:
  void send(int peer, Flow flow, std::uint32_t segment, std::uint64_t count) {
    const int lane = writer_.lane(LaneRole::kContribute, peer);
    for (const Chunk& chunk : cut(count)) {
      writer_.send(lane, flow, peer, {Space::kInput, segment, chunk.offset, chunk.bytes}, {count, chunk.offset});
    }
  }
  void receive(int peer, Flow flow, std::uint32_t segment, std::uint64_t count) {
    const int lane = writer_.lane(LaneRole::kCollect, peer);
    for (const Chunk& chunk : cut(count)) {
      finish_with(count, writer_.receive(lane, flow, peer, {Space::kOutput, segment, chunk.offset, chunk.bytes},
                                         {count, chunk.offset}));
    }
  }
  void keep(std::uint32_t from, std::uint32_t to, std::uint64_t count) {
    if (count == 0) return;
    const int lane = writer_.lane(LaneRole::kOwn);
    for (const Chunk& chunk : cut(count)) {
      finish_with(count, writer_.copy(lane, {Space::kInput, from, chunk.offset, chunk.bytes},
                                      {Space::kOutput, to, chunk.offset, chunk.bytes}));
    }
  }
  void finish_with(std::uint64_t count, Mark step) {
    if (count * size_of(shape_.dtype) >= kLargerThanCaches) writer_.past_caches(step);
  }
  // Chunks depend on the size of this message only, which both ends know; the sizes of other messages may be known to
  // one end only.
  std::vector<Chunk> cut(std::uint64_t count) const {
    const std::uint64_t element_bytes = size_of(shape_.dtype);
    const std::uint64_t bytes = count * element_bytes;
    return cut_message(bytes, chunk_bytes(topology_, bytes, element_bytes, limits_), element_bytes, rank_, 0);
  }

  const Topology& topology_;
  const Shape& shape_;
  const int rank_;
  const ScheduleLimits& limits_;
  ScheduleWriter writer_;
};

}  // namespace

Schedule build_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  check_shape(topology, shape, rank, limits);
  return is_direct(shape.operation) ? DirectBuilder(topology, shape, rank, limits).build()
                                    : build_tree_schedule(topology, shape, rank, limits);
}

}  // namespace atl::collectives
