// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/impl.h"
#include "atoll/collectives/reduce/not_finite.h"
#include "atoll/core/log.h"

namespace atl::collectives {

void Group::Impl::check_values(const Call& call, const Signature& signature) {
  if (!has_reduction(call.operation)) return;
  std::uint64_t before = 0;
  std::uint64_t elements = 0;
  std::optional<NotFinite> found;
  for (const Segment& segment : call.input) {
    if (!found) {
      found = find_not_finite(call.dtype, {segment.data, segment.bytes});
      before = elements;
    }
    elements += segment.bytes / size_of(call.dtype);
  }
  if (!found) {
    warned_of_values = false;
    return;
  }
  const std::string text = describe(signature, elements) + " on rank " + std::to_string(options.rank) + ": element " +
                           std::to_string(before + found->index) + " of the input is " +
                           (found->is_nan ? "NaN" : "infinite");
  if (options.check_values == ValueCheck::kRaise) {
    throw Error(ErrorKind::kUnavailable, text + " (ATOLL_CHECK_VALUES=raise): this rank's computation has diverged");
  }
  // Once diverged, a training keeps producing such values: warn only once.
  if (!std::exchange(warned_of_values, true)) log(LogLevel::kWarning, text + " (ATOLL_CHECK_VALUES)");
}

}  // namespace atl::collectives
