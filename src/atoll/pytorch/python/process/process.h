// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "atoll/collectives/group/context.h"
#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/process/completions.h"
#include "atoll/pytorch/python/process/device_threads.h"
#include "atoll/pytorch/python/process/direct_device.h"
#include "atoll/pytorch/python/process/in_order.h"
#include "atoll/pytorch/python/store/store.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/watchdog.h"

namespace atl::pytorch {

/// The state that all groups of this process share. Created with the first group, destroyed with the last.
struct Process {
  ~Process() {
    const ReleaseGil others_may_need_it;
    watchdog->stop();
    sends.stop();
    direct.stop();
    completions->stop();
  }

  std::shared_ptr<collectives::Context> context;
  StoreClones store_clones;
  std::shared_ptr<Completions> completions = std::make_shared<Completions>(prepare_thread);
  // Watches what libraries do on accelerators. A thread that interrupts others holds only the watchdog, and not all of
  // Process, for whose threads the end of the program waits.
  const std::shared_ptr<Watchdog> watchdog = std::make_shared<Watchdog>(prepare_thread);
  InOrder sends{"atoll-sends", prepare_thread};  // of tensors on accelerators, and of others posted after them
  DirectDevices direct;
};

/// Returns the live Process or a new one. A new one opens the endpoint described by the ATOLL_* environment and agrees
/// with the rest of the job, through the store, on the job's name and key. Throws atl::Error.
std::shared_ptr<Process> join_process(const c10::intrusive_ptr<c10d::Store>& store, int global_rank, Deadline deadline);

/// The restart attempt of the job (TORCHELASTIC_RESTART_COUNT).
std::uint32_t attempt();

/// Settings of this rank from the environment; all throw Error(kInvalidArgument) naming the variable.
std::string island_label(collectives::Context& context, const Place& place);  ///< ATOLL_ISLAND, else by stack and host
collectives::GroupOptions group_options();                                    ///< those with a variable in GroupOptions
std::uint64_t staging_bytes();                                                ///< ATOLL_STAGING, else 24 MiB

}  // namespace atl::pytorch
