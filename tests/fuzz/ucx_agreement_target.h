// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/agreement.h"

namespace atl::fuzz {

/// Bytes of a peer while two ends agree on UCX. The first byte chooses how they are cut and whether this end has UCX.
inline void ucx_agreement(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto choice = std::to_integer<unsigned>(bytes.front());
  const std::size_t piece = 1 + (choice >> 1);
  const std::vector<std::byte> address((choice & 1U) != 0 ? 100 : 0);
  bytes = bytes.subspan(1);
  transport::ucx::Agreement subject(7, address, address.empty() ? "none" : "");
  try {
    while (!bytes.empty() && subject.wanted() != 0) {
      const std::size_t count = std::min({piece, bytes.size(), subject.wanted()});
      subject.receive(bytes.first(count));
      bytes = bytes.subspan(count);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
    return;
  }
  // Nothing that a peer sends makes this end agree without its own vote.
  if (subject.agreed()) std::abort();
  if (subject.is_probing()) {
    subject.vote("");
    if (subject.agreed() && !subject.objection().empty()) std::abort();
  }
}

}  // namespace atl::fuzz
