// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/build.h"
#include "atoll/collectives/schedule/chunks.h"
#include "atoll/collectives/schedule/writer.h"

namespace atl::collectives {
namespace {

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
  int rank() const { return rank_; }
  Schedule finish() { return writer_.finish("direct"); }

 private:
  void finish_with(std::uint64_t count, LaneMark step) {
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

void build_gather(DirectBuilder& builder, const Topology& topology, const Shape& shape) {
  const int rank = builder.rank();
  const auto own = static_cast<std::uint32_t>(rank);
  if (rank != shape.root) {
    builder.send(shape.root, Flow::kUp, 0, shape.counts[own]);
    return;
  }
  builder.keep(0, own, shape.counts[own]);
  for (int peer = 0; peer < topology.size; ++peer) {
    const auto segment = static_cast<std::uint32_t>(peer);
    if (peer != rank) builder.receive(peer, Flow::kUp, segment, shape.counts[segment]);
  }
}

void build_scatter(DirectBuilder& builder, const Topology& topology, const Shape& shape) {
  const int rank = builder.rank();
  const auto own = static_cast<std::uint32_t>(rank);
  if (rank != shape.root) {
    builder.receive(shape.root, Flow::kDown, 0, shape.counts[own]);
    return;
  }
  builder.keep(own, 0, shape.counts[own]);
  for (int peer = 0; peer < topology.size; ++peer) {
    const auto segment = static_cast<std::uint32_t>(peer);
    if (peer != rank) builder.send(peer, Flow::kDown, segment, shape.counts[segment]);
  }
}

void build_all_to_all(DirectBuilder& builder, const Topology& topology, const Shape& shape) {
  for (int peer = 0; peer < topology.size; ++peer) {
    const auto segment = static_cast<std::uint32_t>(peer);
    if (peer == builder.rank()) {
      builder.keep(segment, segment, shape.counts[segment]);
      continue;
    }
    builder.send(peer, Flow::kUp, segment, shape.counts[segment]);
    builder.receive(peer, Flow::kUp, segment, shape.receive_counts[segment]);
  }
}

}  // namespace

Schedule build_direct_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  DirectBuilder builder(topology, shape, rank, limits);
  if (shape.operation == Operation::kGather) build_gather(builder, topology, shape);
  if (shape.operation == Operation::kScatter) build_scatter(builder, topology, shape);
  if (shape.operation == Operation::kAllToAll) build_all_to_all(builder, topology, shape);
  return builder.finish();
}

}  // namespace atl::collectives
