// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>

#include "atoll/core/loop.h"
#include "atoll/infer/serve/model_cache.h"
#include "atoll/infer/serve/profiles.h"
#include "atoll/infer/serve/server.h"
#include "atoll/infer/serve/turns.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

class ServedModel;

inline constexpr std::size_t kMaxProfiles = 128;  ///< of models, up to half a megabyte each

/// What all connections of a server share. On its loop, but for the cache, which is used on the disk's.
struct ServerContext {
  ServerContext(const ServerOptions& given, Loop& serving, Loop& hashing_loop, Loop& disk_loop);

  const ServerOptions& options;
  Loop& loop;
  Loop& hashing;  ///< compares models with their hash, which takes long
  Loop& disk;     ///< looks into the cache and writes it
  ModelCache cache;
  Turns turns;
  ServerCounts counts;
  bool is_draining = false;
  std::size_t queued_for_disk = 0;     ///< bytes of all uploads
  std::size_t queued_for_clients = 0;  ///< bytes of all connections, at the last tick
  std::set<ServedModel*> with_worker;  ///< or about to have one
  Profiles profiles{kMaxProfiles};
  std::uint64_t freed = 0;           ///< how often retry_waiting() was called
  std::deque<ServedModel*> waiting;  ///< for an upload of the same model, or for a worker

  /// Something has become free: each that waits tries again, in order.
  void retry_waiting();
  /// The same, behind what the loop does at the moment.
  void retry_waiting_later();
};

}  // namespace atl::infer
