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
  return {static_cast<Operation>(header.operation),
          static_cast<DataType>(header.dtype),
          static_cast<ReduceOp>(header.reduce_op),
          header.root,
          header.sequence,
          header.attempt};
}

/// Returns "all_reduce #5", or "all_reduce #5.2" for a later part of the operation.
inline std::string numbered(Operation operation, std::uint64_t sequence) {
  std::string text = std::string(to_string(operation)) + " #" + std::to_string(number_of(sequence));
  if (part_of(sequence) > 0) text += "." + std::to_string(part_of(sequence));
  return text;
}

/// Returns "all_reduce #5 (sum, float32, 100 elements)" or "broadcast #5 (int64, 3 elements, root 1)".
inline std::string describe(const Signature& signature, std::uint64_t count) {
  std::string text = numbered(signature.operation, signature.sequence);
  if (signature.operation == Operation::kBarrier) return text;
  text += " (";
  if (has_reduction(signature.operation)) text += std::string(to_string(signature.reduce_op)) + ", ";
  text +=
      std::string(to_string(signature.dtype)) + ", " + std::to_string(count) + (count == 1 ? " element" : " elements");
  if (signature.root >= 0) text += ", root " + std::to_string(signature.root);
  return text + ")";
}
inline std::string describe(const transport::FrameHeader& header) {
  return describe(signature_of(header), header.count);
}

/// The error text for ranks that made different calls.
inline std::string describe_leftover(const std::string& theirs, int their_rank, int my_rank) {
  return theirs + " on rank " + std::to_string(their_rank) + " sent to rank " + std::to_string(my_rank) +
         ", which called it differently and took nothing: all ranks of a group must call the same operations with the "
         "same root, sizes and dtypes";
}
inline std::string describe_mismatch(const std::string& mine, int my_rank, const std::string& theirs, int their_rank) {
  return mine + " on rank " + std::to_string(my_rank) + " met " + theirs + " on rank " + std::to_string(their_rank) +
         ": all ranks of a group must call the same operations in the same order with the same sizes and dtypes";
}

}  // namespace atl::collectives
