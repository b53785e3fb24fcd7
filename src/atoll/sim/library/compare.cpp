// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/compare.h"

#include <algorithm>

namespace atl::sim {
namespace {

bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

bool has_root(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kBroadcast || operation == Operation::kGather ||
         operation == Operation::kScatter;
}

std::uint64_t total(std::span<const Region> regions) {
  std::uint64_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;
  return bytes;
}

std::string describe(Operation operation, DataType dtype, ReduceOp op, int root, std::uint64_t in, std::uint64_t out) {
  if (operation == Operation::kBarrier) return "barrier";
  const auto width = element_size(dtype);
  std::string text = std::string(to_string(operation)) + " with " + std::to_string(in / width) + " elements in";
  if (operation != Operation::kAllReduce && operation != Operation::kReduce && operation != Operation::kBroadcast) {
    text += " and " + std::to_string(out / width) + " out";
  }
  text += std::string(", ") + to_string(dtype);
  if (reduces(operation)) text += std::string(", ") + to_string(op);
  if (has_root(operation)) text += ", root " + std::to_string(root);
  return text;
}

std::span<const Region> published(const Half& half) {
  return half.regions.first(std::min<std::size_t>(half.record.regions, half.regions.size()));
}

[[noreturn]] void differ(const Call& mine, int rank, int peer, const Half& theirs) {
  const Record& record = theirs.record;
  std::string here =
      "rank " + std::to_string(rank) + " called " +
      describe(mine.operation, mine.dtype, mine.reduce_op, mine.root, total(mine.input), total(mine.output));
  std::string there = "rank " + std::to_string(peer) + " called " +
                      describe(record.operation, record.dtype, record.reduce_op, record.root, total(published(theirs)),
                               record.output_bytes);
  if (peer < rank) here.swap(there);
  throw Error(ErrorKind::kMismatch, "ranks called different things: " + here + "; " + there);
}

bool sizes_fit(const Call& mine, int rank, int peer, std::span<const Region> theirs) {
  const auto me = static_cast<std::size_t>(rank);
  const auto other = static_cast<std::size_t>(peer);
  switch (mine.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kBroadcast: return theirs[0].bytes == mine.input[0].bytes;
    case Operation::kAllGather: return theirs[0].bytes == mine.output[other].bytes;
    case Operation::kGather: return rank != mine.root || theirs[0].bytes == mine.output[other].bytes;
    case Operation::kReduceScatter:
      return std::equal(theirs.begin(), theirs.end(), mine.input.begin(), mine.input.end(),
                        [](const Region& a, const Region& b) { return a.bytes == b.bytes; });
    case Operation::kScatter: return peer != mine.root || theirs[me].bytes == mine.output[0].bytes;
    case Operation::kAllToAll: return theirs[me].bytes == mine.output[other].bytes;
    default: return true;
  }
}

// Returns how many regions a rank must publish.
std::size_t expected_regions(const Call& mine, int peer, std::size_t size) {
  switch (mine.operation) {
    case Operation::kBarrier: return 0;
    case Operation::kReduceScatter:
    case Operation::kAllToAll: return size;
    case Operation::kScatter: return peer == mine.root ? size : 0;
    default: return 1;
  }
}

}  // namespace

void check_agreement(const Call& mine, int rank, int peer, const Half& theirs) {
  const Record& record = theirs.record;
  const bool same = record.operation == mine.operation && record.dtype == mine.dtype &&
                    (!reduces(mine.operation) || record.reduce_op == mine.reduce_op) &&
                    (!has_root(mine.operation) || record.root == mine.root) &&
                    record.regions == expected_regions(mine, peer, theirs.regions.size());
  if (!same || !sizes_fit(mine, rank, peer, published(theirs))) differ(mine, rank, peer, theirs);
}

void check_message(const Call& mine, int rank, const Half& theirs) {
  const std::uint64_t sent = total(published(theirs));
  const std::uint64_t expected = total(mine.output);
  if (theirs.record.dtype == mine.dtype && sent == expected) return;
  const auto width = element_size(mine.dtype);
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(mine.root) + " sent " +
                                        std::to_string(sent / element_size(theirs.record.dtype)) + " elements of " +
                                        to_string(theirs.record.dtype) + ", rank " + std::to_string(rank) +
                                        " expects " + std::to_string(expected / width) + " of " +
                                        to_string(mine.dtype));
}

}  // namespace atl::sim
