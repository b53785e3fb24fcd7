// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/describe.h"

namespace atl::collectives {

std::string numbered(Operation operation, std::uint64_t sequence) {
  std::string text = std::string(to_string(operation)) + " #" + std::to_string(number_of(sequence));
  if (part_of(sequence) > 0) text += "." + std::to_string(part_of(sequence));
  return text;
}

std::string describe(const Signature& signature, std::uint64_t count) {
  std::string text = numbered(signature.operation, signature.sequence);
  if (signature.operation == Operation::kBarrier) return text;
  text += " (";
  if (has_reduction(signature.operation)) text += std::string(to_string(signature.reduce_op)) + ", ";
  text +=
      std::string(to_string(signature.dtype)) + ", " + std::to_string(count) + (count == 1 ? " element" : " elements");
  if (signature.root >= 0) text += ", root " + std::to_string(signature.root);
  return text + ")";
}

std::string describe_leftover(const std::string& theirs, int their_rank, int my_rank) {
  return theirs + " on rank " + std::to_string(their_rank) + " sent to rank " + std::to_string(my_rank) +
         ", which called it differently and took nothing: all ranks of a group must call the same operations with the "
         "same root, sizes and dtypes";
}

std::string describe_mismatch(const std::string& mine, int my_rank, const std::string& theirs, int their_rank) {
  return mine + " on rank " + std::to_string(my_rank) + " met " + theirs + " on rank " + std::to_string(their_rank) +
         ": all ranks of a group must call the same operations in the same order with the same sizes and dtypes";
}

std::string describe(const transport::FrameHeader& header) { return describe(signature_of(header), header.count); }

}  // namespace atl::collectives
