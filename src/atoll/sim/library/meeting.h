// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "atoll/core/store.h"
#include "atoll/sim/library/control.h"

namespace atl::sim {

/// The result of meeting all ranks of a communicator: the shared memory, and two connections with each other rank. An
/// incoming connection ends when that rank's process does.
struct Meeting {
  struct Peer {
    Fd incoming;
    Fd outgoing;
    int process = -1;  ///< the process id
  };
  std::unique_ptr<Control> control;
  std::vector<Peer> peers;  ///< by rank; empty connections for this rank itself
};

/// Meets the other ranks through `store`, whose keys no other communicator may use. Blocks until all have joined.
/// Throws Error(kTimeout) naming the ranks that have not, and kUnavailable for one that is on another host.
Meeting meet(Store& store, int rank, int size, Deadline deadline);

}  // namespace atl::sim
