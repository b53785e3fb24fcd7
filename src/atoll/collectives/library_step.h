// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "atoll/core/deadline.h"

namespace atl::collectives {

/// One call of an island's library, on several ranks of the island.
struct LibraryStep {
  enum class Kind : std::uint8_t {
    kIn = 1,      ///< brings one part of a collective to the bridge; all ranks of the island
    kOut,         ///< spreads what has crossed, for a collective without kIn; all ranks of the island
    kOutAfterIn,  ///< the same for a collective with kIn, whose result depends on the input of every rank of the group
    kMessage,     ///< carries a message from one rank to another
  };
  Kind kind = Kind::kIn;
  std::int32_t sender = -1;  ///< group ranks; for messages only
  std::int32_t receiver = -1;
  std::uint64_t number =
      0;  ///< a collective's sequence (describe.h), or a message's index among those from sender to receiver

  friend auto operator<=>(const LibraryStep&, const LibraryStep&) = default;
};

/// A rank's request for a step: it is ready.
struct StepRequest {
  LibraryStep step;
  /// Called once, on any thread, in the order that all ranks of the island share: with nullptr when the step's turn has
  /// come, or with an error if it never will. Must not block, and must not call the group.
  std::function<void(const std::exception_ptr& error)> go;
  Deadline deadline = Deadline::never();  ///< after which the group fails
  std::string timed_out{};                ///< the text of that error
};

}  // namespace atl::collectives
