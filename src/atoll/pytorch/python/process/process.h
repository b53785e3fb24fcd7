// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "atoll/collectives/group/context.h"
#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/process/completions.h"
#include "atoll/pytorch/python/process/direct_device.h"
#include "atoll/pytorch/python/process/in_order.h"
#include "atoll/pytorch/python/store/store.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/watch.h"

namespace atl::pytorch {

/// What all groups of this process share. Made with the first group, gone with the last.
struct Process {
  ~Process() {
    const ReleaseGil others_may_need_it;
    watch->stop();
    sends.stop();
    direct.stop();
    completions->stop();
  }

  std::shared_ptr<collectives::Context> context;
  StoreClones store_clones;
  std::shared_ptr<Completions> completions = std::make_shared<Completions>();
  // Over what libraries do on accelerators. Threads of this process hold the watch alone while they interrupt somebody: with
  // all of Process, the end of the program could not wait for them.
  const std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  InOrder sends{"atoll-sends"};  // of tensors on accelerators, and of others behind them
  DirectDevices direct;
};

/// The live Process or a new one. A new one opens the endpoint described by the ATOLL_* environment and agrees with the rest of
/// the job, through the store, on the job's name and key. Throws atl::Error.
std::shared_ptr<Process> join_process(const c10::intrusive_ptr<c10d::Store>& store, int global_rank, Deadline deadline);

/// Restart attempt of the job (TORCHELASTIC_RESTART_COUNT).
std::uint32_t attempt();

/// What the environment says about this rank's place in a group; all throw Error(kInvalidArgument) naming the variable.
std::string island_label(collectives::Context& context, const Place& place);  ///< ATOLL_ISLAND, else by stack and host
double uplink();                                                              ///< ATOLL_UPLINK, else 0
bool flat_reduce();                                                           ///< ATOLL_REDUCE=flat
bool check_data();                                                            ///< ATOLL_CHECK_DATA=1
collectives::ValueCheck check_values();                                       ///< ATOLL_CHECK_VALUES
std::chrono::milliseconds slow_after();                                       ///< ATOLL_SLOW_AFTER, else 20 s
std::string trace_folder();                                                   ///< ATOLL_TRACE_DIR, else ""
std::size_t trace_events();                                                   ///< ATOLL_TRACE_EVENTS
std::uint64_t staging_bytes();                                                ///< ATOLL_STAGING, else 24 MiB

}  // namespace atl::pytorch
