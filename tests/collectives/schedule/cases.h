// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::test {

using collectives::DataType;
using collectives::Operation;
using collectives::Schedule;
using collectives::ScheduleLimits;
using collectives::Shape;
using collectives::Topology;

inline constexpr Operation kOperations[] = {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
                                            Operation::kBroadcast, Operation::kReduce,        Operation::kGather,
                                            Operation::kScatter,   Operation::kAllToAll,      Operation::kBarrier};

/// How the ranks of several islands follow one another: "AABB", "ABAB", or in an order drawn from the sizes.
enum class Order { kBlocks, kTurns, kMixed };

inline std::vector<std::string> make_labels(const std::vector<int>& sizes, Order order) {
  std::vector<std::string> labels;
  if (order == Order::kTurns) {
    for (int turn = 0; turn < 1000; ++turn) {
      for (std::size_t island = 0; island < sizes.size(); ++island) {
        if (turn < sizes[island]) labels.emplace_back(1, static_cast<char>('A' + island));
      }
    }
    return labels;
  }
  for (std::size_t island = 0; island < sizes.size(); ++island) {
    labels.insert(labels.end(), static_cast<std::size_t>(sizes[island]), "island " + std::to_string(island));
  }
  if (order == Order::kMixed) {
    std::uint32_t state = 12345;
    for (std::size_t i = labels.size(); i > 1; --i) {
      state = state * 1664525u + 1013904223u;
      std::swap(labels[i - 1], labels[(state >> 8) % i]);
    }
  }
  return labels;
}

/// Returns the shapes of all ranks for a message (or, with several, messages of about) `count` elements. `uneven`:
/// counts differ by rank, and some are zero.
inline std::vector<Shape> make_shapes(const Topology& topology, Operation operation, DataType dtype,
                                      std::uint64_t count, int root, bool uneven) {
  const auto size = static_cast<std::size_t>(topology.size);
  const auto count_of = [&](std::size_t a, std::size_t b) -> std::uint64_t {
    if (!uneven) return count;
    const std::uint64_t draw = (a * 7 + b * 13 + count) % 5;
    return draw == 0 ? 0 : count * draw / 3 + draw;
  };
  Shape shape;
  shape.operation = operation;
  shape.dtype = operation == Operation::kBarrier ? DataType::kUInt8 : dtype;
  shape.root = has_root(operation) ? root : -1;
  const bool one =
      operation == Operation::kAllReduce || operation == Operation::kBroadcast || operation == Operation::kReduce;
  if (operation == Operation::kBarrier) shape.counts = {1};
  if (one) shape.counts = {count};
  std::vector<Shape> shapes(size, shape);
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (std::size_t peer = 0; peer < size && shape.counts.empty(); ++peer) {
      const bool pairs = operation == Operation::kAllToAll;
      shapes[rank].counts.push_back(pairs ? count_of(rank, peer) : count_of(peer, 0));
      if (pairs) shapes[rank].receive_counts.push_back(count_of(peer, rank));
    }
  }
  return shapes;
}

inline std::vector<Schedule> build_all(const Topology& topology, const std::vector<Shape>& shapes,
                                       const ScheduleLimits& limits = {}) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < topology.size; ++rank) {
    schedules.push_back(build_schedule(topology, shapes[static_cast<std::size_t>(rank)], rank, limits));
  }
  return schedules;
}

inline std::string describe(const Topology& topology, const Shape& shape, const ScheduleLimits& limits) {
  std::string text = std::string(to_string(shape.operation)) + " of [";
  for (const auto count : shape.counts) text += " " + std::to_string(count);
  text += " ] " + std::string(to_string(shape.dtype)) + ", root " + std::to_string(shape.root) + ", islands";
  for (const int island : topology.island_of) text += " " + std::to_string(island);
  for (std::size_t i = 0; topology.has_leads() && i < topology.libraries.size(); ++i)
    text += topology.libraries[i].empty() ? " -" : " L";
  return text + (topology.flat_reduce ? ", flat" : "") + ", frames of " + std::to_string(limits.max_payload) +
         ", window " + std::to_string(limits.window) + ", small " + std::to_string(limits.small_bytes);
}

/// Returns the shapes for islands that use their libraries, if they have one.
inline std::vector<Shape> with_libraries(const Topology& topology, std::vector<Shape> shapes) {
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    const auto island = static_cast<std::size_t>(topology.island_of[rank]);
    shapes[rank].library_inside = !topology.libraries[island].empty() && topology.islands[island].size() > 1;
  }
  return shapes;
}

/// Returns an empty string if the schedules of this case are correct, else the case and the fault.
inline std::string check_case(const Topology& topology, const std::vector<Shape>& shapes,
                              const ScheduleLimits& limits) {
  const std::string fault = check_schedules(topology, shapes, build_all(topology, shapes, limits), limits);
  return fault.empty() ? "" : describe(topology, shapes[0], limits) + ": " + fault;
}

}  // namespace atl::test
