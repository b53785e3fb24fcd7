// SPDX-License-Identifier: Apache-2.0
// ATOLL_CHECK_DATA: checksums of data from memory to memory, and of the results that all ranks share.
#include <algorithm>
#include <cstdio>

#include "atoll/collectives/schedule/executor_run.h"

namespace atl::collectives {
namespace {

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
