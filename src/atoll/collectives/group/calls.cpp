// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/impl.h"

namespace atl::collectives {
namespace {

struct SegmentCounts {
  std::size_t input;
  std::size_t output;
};

SegmentCounts expected_segments(Operation operation, bool at_root, std::size_t size) {
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kBarrier:
    case Operation::kBroadcast: return {1, 1};
    case Operation::kReduce: return {1, at_root ? std::size_t{1} : std::size_t{0}};
    case Operation::kAllGather: return {1, size};
    case Operation::kGather: return {1, at_root ? size : 0};
    case Operation::kReduceScatter: return {size, 1};
    case Operation::kScatter: return {at_root ? size : 0, 1};
    case Operation::kAllToAll: return {size, size};
    case Operation::kSend:
    case Operation::kReceive: break;
  }
  throw Error(ErrorKind::kInvalidArgument, std::string(to_string(operation)) + " is not a collective");
}

void counts_of(const std::vector<Segment>& segments, std::size_t element_bytes, std::vector<std::uint64_t>& counts) {
  counts.clear();
  for (const Segment& segment : segments) counts.push_back(segment.bytes / element_bytes);
}

}  // namespace

void check_call(const Call& call, int rank, int size) {
  const std::string name = to_string(call.operation);
  const auto reject = [&](const std::string& why) { throw Error(ErrorKind::kInvalidArgument, name + ": " + why); };
  if (has_root(call.operation) && (call.root < 0 || call.root >= size)) {
    reject("root " + std::to_string(call.root) + " is not a rank of this group of " + std::to_string(size));
  }
  if (has_reduction(call.operation) && !is_supported(call.reduce_op, call.dtype)) {
    reject(std::string(to_string(call.reduce_op)) + " is not defined for " + to_string(call.dtype));
  }
  if (call.part >= kMaxParts) reject("an operation cannot have more than " + std::to_string(kMaxParts) + " parts");
  if (call.progress && call.progress->comes_in_parts() && !is_direct(call.operation))
    reject("its segments cannot be loaded or delivered in parts");
  const auto expected = expected_segments(call.operation, rank == call.root, static_cast<std::size_t>(size));
  if (call.input.size() != expected.input || call.output.size() != expected.output) {
    reject("expected " + std::to_string(expected.input) + " input and " + std::to_string(expected.output) +
           " output tensors, got " + std::to_string(call.input.size()) + " and " + std::to_string(call.output.size()));
  }
  const bool one_size =
      call.operation == Operation::kAllReduce || (call.operation == Operation::kReduce && rank == call.root);
  if (one_size && call.input[0].bytes != call.output[0].bytes) {
    reject("input has " + std::to_string(call.input[0].bytes) + " bytes and output " +
           std::to_string(call.output[0].bytes));
  }
  const auto mine = static_cast<std::size_t>(rank);
  const auto same_own = [&](const Segment& a, const Segment& b) {
    if (a.bytes != b.bytes) {
      reject("rank " + std::to_string(rank) + "'s own part has " + std::to_string(a.bytes) + " bytes as input and " +
             std::to_string(b.bytes) + " as output");
    }
  };
  if (call.operation == Operation::kAllGather || (call.operation == Operation::kGather && rank == call.root)) {
    same_own(call.input[0], call.output[mine]);
  } else if (call.operation == Operation::kReduceScatter ||
             (call.operation == Operation::kScatter && rank == call.root)) {
    same_own(call.input[mine], call.output[0]);
  } else if (call.operation == Operation::kAllToAll) {
    same_own(call.input[mine], call.output[mine]);
  }
}

void shape_of(const Call& call, int rank, int size, Shape& shape) {
  const std::size_t element_bytes = size_of(call.dtype);
  shape.operation = call.operation;
  shape.dtype = call.dtype;
  shape.root = call.root;
  shape.library_inside = call.library_inside;
  shape.receive_counts.clear();
  switch (call.operation) {
    case Operation::kAllGather: counts_of(call.output, element_bytes, shape.counts); break;
    case Operation::kAllToAll:
      counts_of(call.input, element_bytes, shape.counts);
      counts_of(call.output, element_bytes, shape.receive_counts);
      break;
    case Operation::kGather:
    case Operation::kScatter: {
      // A rank that is not the root knows only its own part.
      const auto& parts = call.operation == Operation::kGather ? call.output : call.input;
      const auto& own = call.operation == Operation::kGather ? call.input : call.output;
      shape.counts.assign(static_cast<std::size_t>(size), 0);
      shape.counts[static_cast<std::size_t>(rank)] = own[0].bytes / element_bytes;
      if (rank == call.root) counts_of(parts, element_bytes, shape.counts);
      break;
    }
    default: counts_of(call.input, element_bytes, shape.counts); break;
  }
}

}  // namespace atl::collectives
