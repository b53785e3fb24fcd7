// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/refusals.h"

namespace atl::collectives {

bool Refusals::note(std::uint64_t number, const Refusal& refusal) {
  const std::lock_guard lock(mutex_);
  if (!refusals_.try_emplace(number, refusal).second) return false;
  if (refusals_.size() > kMaxRemembered) refusals_.erase(refusals_.begin());
  any_.store(true, std::memory_order_release);
  return true;
}

std::optional<Refusal> Refusals::find(std::uint64_t number) const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto known = refusals_.find(number);
  return known == refusals_.end() ? std::nullopt : std::optional(known->second);
}

void Refusals::throw_if_refused(const Signature& signature, std::uint64_t count, int rank) const {
  const auto refusal = find(number_of(signature.sequence));
  if (!refusal) return;
  throw OperationRefused(ErrorKind::kMismatch,
                         describe(signature, count) + " on rank " + std::to_string(rank) + ": " + describe(*refusal));
}

std::string describe(const Refusal& refusal) {
  return "rank " + std::to_string(refusal.rank) + " refused it: " + refusal.why;
}

}  // namespace atl::collectives
