// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "atoll/core/loop.h"
#include "atoll/infer/link/memory_door.h"
#include "atoll/infer/serve/model_cache.h"
#include "atoll/infer/serve/profiles.h"
#include "atoll/infer/serve/server.h"
#include "atoll/infer/serve/turns.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

class ServedModel;

inline constexpr std::size_t kMaxProfiles = 128;  ///< of models, up to half a megabyte each

/// The state that all connections of a server share. On its loop, except for the cache, which is used on the disk's
/// loop.
struct ServerContext {
  ServerContext(const ServerOptions& given, Loop& serving, Loop& hashing_loop, Loop& disk_loop);

  const ServerOptions& options;
  Loop& loop;
  Loop& hashing;                     ///< compares models with their hashes, which takes long
  Loop& disk;                        ///< reads and writes the cache
  std::unique_ptr<MemoryDoor> door;  ///< ends on the loop, after the models
  ModelCache cache;
  Turns turns;
  ServerCounts counts;
  bool is_draining = false;
  std::size_t queued_for_disk = 0;     ///< bytes of all uploads
  std::size_t queued_for_clients = 0;  ///< bytes of all connections, at the last tick
  std::set<ServedModel*> with_worker;  ///< including models that are about to have one
  Profiles profiles{kMaxProfiles};
  std::uint64_t freed = 0;           ///< number of calls of retry_waiting()
  std::deque<ServedModel*> waiting;  ///< for an upload of the same model, or for a worker

  /// Something has become free: waiting models try again, in order.
  void retry_waiting();
  /// The same, after the loop's current task.
  void retry_waiting_later();
};

}  // namespace atl::infer
