// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "atoll/core/deadline.h"

namespace atl::collectives {

/// Something that an island's library does on several of its ranks.
struct LibraryStep {
  enum class Kind : std::uint8_t {
    kIn = 1,      ///< brings one part of a collective to the bridge; all ranks of the island
    kOut,         ///< spreads what has crossed, of a collective without kIn; all ranks of the island
    kOutAfterIn,  ///< the same of a collective with kIn, whose result depends on what every rank of the group gave
    kMessage,     ///< carries a message from one rank to another
  };
  Kind kind = Kind::kIn;
  std::int32_t sender = -1;  ///< group ranks, of a message
  std::int32_t receiver = -1;
  std::uint64_t number =
      0;  ///< the collective's sequence (describe.h); the message's place among those from sender to receiver

  friend auto operator<=>(const LibraryStep&, const LibraryStep&) = default;
};

/// A rank's word that it is ready for a step.
struct StepRequest {
  LibraryStep step;
  /// Called once, on any thread, in the order that all ranks of the island share: with nullptr when it is this step's turn, with an
  /// error when that will never be. Must not block, nor call the group.
  std::function<void(const std::exception_ptr& error)> go;
  Deadline deadline = Deadline::never();  ///< after which the group fails
  std::string timed_out{};                ///< the text of that error
};

}  // namespace atl::collectives
