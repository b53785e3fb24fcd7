// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "atoll/infer/serve/model_cache.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// The measured times of models on the server's device, by hash, so that none is timed twice. Keeps the `most` that
/// were used last. On the server's loop.
class Profiles {
 public:
  /// `most` is at least 1.
  explicit Profiles(std::size_t most) : most_(most) {}

  /// Null if it is not known.
  std::shared_ptr<const wire::Ready> find(const ModelHash& hash);
  /// Keeps this one unless one exists already; returns the one that is kept.
  std::shared_ptr<const wire::Ready> keep(const ModelHash& hash, const wire::Ready& timed);
  std::size_t size() const noexcept { return kept_.size(); }

 private:
  using Order = std::list<std::pair<ModelHash, std::shared_ptr<const wire::Ready>>>;
  const std::size_t most_;
  Order order_;  // the most recently used one first
  std::map<ModelHash, Order::iterator> kept_;
};

}  // namespace atl::infer
