// SPDX-License-Identifier: Apache-2.0
#pragma once

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

inline constexpr std::size_t kMostProfiles = 128;  ///< of models, up to half a megabyte each

/// What all connections of a server share. On its loop.
struct ServerContext {
  ServerContext(const ServerOptions& given, Loop& serving, Loop& hashing_loop);

  const ServerOptions& options;
  Loop& loop;
  Loop& hashing;  ///< compares models with their hash, which takes long
  ModelCache cache;
  Turns turns;
  ServerCounts counts;
  bool is_draining = false;
  std::set<ServedModel*> with_worker;
  Profiles profiles{kMostProfiles};
  std::deque<ServedModel*> waiting;  ///< for an upload of the same model, or for a worker

  /// Something has become free: each that waits tries again, in order.
  void retry_waiting();
  /// The same, behind what the loop does at the moment.
  void retry_waiting_later();
};

}  // namespace atl::infer
