// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/collectives/types.h"
#include "atoll/transport/frame.h"

namespace atl::collectives {

/// The contents of a group's frames; the value of FrameHeader::kind.
enum class FrameKind : std::uint8_t {
  kCollective = 1,  ///< a chunk of a collective
  kMessage,         ///< a whole small message, sent without a request (eager)
  kAnnounce,        ///< announces a large message (rendezvous)
  kGrant,           ///< the receiver has posted a buffer for it
  kPayload,         ///< a part of a granted message
  kConsumed,        ///< a receive has consumed eager bytes: returns credit
  kAnnounceDirect,  ///< announces a large message between devices; it is granted with kGrant
  kLanded,          ///< the direct message has arrived
  kWithdrawn,       ///< a message whose sender refused the call; the payload gives the reason
  kTurnedDown,      ///< an announced message whose receiver refused the call; the payload gives the reason
};

/// One operation of the program may be carried out as several collectives: the chunks of a large tensor, or the tensors
/// of a list. A sequence combines the operation's number in the group (the upper bits) with the collective's index in
/// the operation (the lower bits).
inline constexpr int kPartBits = 20;
inline constexpr std::uint32_t kMaxParts = std::uint32_t{1} << kPartBits;
constexpr std::uint64_t sequence_of(std::uint64_t number, std::uint32_t part) noexcept {
  return (number << kPartBits) | part;
}
constexpr std::uint64_t number_of(std::uint64_t sequence) noexcept { return sequence >> kPartBits; }
constexpr std::uint32_t part_of(std::uint64_t sequence) noexcept {
  return static_cast<std::uint32_t>(sequence & (kMaxParts - 1));
}

/// An operation as one rank called it; frame headers carry these fields.
struct Signature {
  Operation operation = Operation::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::int32_t root = -1;
  std::uint64_t sequence = 0;  ///< see sequence_of()
  std::uint32_t attempt = 0;
  bool operator==(const Signature&) const = default;
};

/// Returns the operation that a collective's frame belongs to.
inline Signature signature_of(const transport::FrameHeader& header) noexcept {
  return {static_cast<Operation>(header.operation), static_cast<DataType>(header.dtype),
          static_cast<ReduceOp>(header.reduce_op),  header.root,
          header.sequence,                          header.attempt};
}

/// Returns "all_reduce #5", or "all_reduce #5.2" for a later part of the operation.
std::string numbered(Operation operation, std::uint64_t sequence);

/// Returns "all_reduce #5 (sum, float32, 100 elements)" or "broadcast #5 (int64, 3 elements, root 1)".
std::string describe(const Signature& signature, std::uint64_t count);
std::string describe(const transport::FrameHeader& header);

/// The error text for ranks that made different calls.
std::string describe_leftover(const std::string& theirs, int their_rank, int my_rank);
std::string describe_mismatch(const std::string& mine, int my_rank, const std::string& theirs, int their_rank);

}  // namespace atl::collectives
