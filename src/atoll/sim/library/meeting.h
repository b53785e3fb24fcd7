// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "atoll/core/store.h"
#include "atoll/sim/library/control.h"

namespace atl::sim {

/// What a rank has when all ranks of a communicator have met: the shared memory, and two connections with each other rank. An
/// incoming one ends when that rank's process does.
struct Meeting {
  struct Peer {
    Fd incoming;
    Fd outgoing;
    int process = -1;  ///< its process id
  };
  std::unique_ptr<Control> control;
  std::vector<Peer> peers;  ///< by rank; empty connections for this rank itself
};

/// Meets the other ranks through `store`, whose keys must be this communicator's alone. Blocks until all have come. Throws
/// Error(kTimeout) naming the ranks that did not, and kUnavailable for one that is on another host.
Meeting meet(Store& store, int rank, int size, Deadline deadline);

}  // namespace atl::sim
