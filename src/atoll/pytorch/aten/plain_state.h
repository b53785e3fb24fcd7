// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "atoll/collectives/reduce/float_mode.h"

namespace atl::pytorch {

/// While an object of this class exists, its thread and the threads that operators use for it do not flush denormal
/// numbers to zero, even if torch.set_flush_denormal is on. Costs nothing if it is off.
class Denormals {
 public:
  Denormals() {
    constexpr auto kFlushes = collectives::detail::kFlushesSubnormals;
    if ((collectives::detail::float_mode() & kFlushes) == 0) return;
    before_.resize(static_cast<std::size_t>(at::get_num_threads()));
    on_threads([](unsigned& before) {
      before = collectives::detail::float_mode();
      collectives::detail::set_float_mode(before & ~kFlushes);
    });
  }
  ~Denormals() {
    on_threads([](unsigned before) { collectives::detail::set_float_mode(before); });
  }
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
  // Runs `body` on each thread that operators of this one use, itself included.
  template <typename Body>
  void on_threads(const Body& body) {
    if (before_.empty()) return;
    at::parallel_for(0, static_cast<std::int64_t>(before_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(before_[static_cast<std::size_t>(i)]);
    });
  }

  std::vector<unsigned> before_;  // the control words by thread; empty if flushing was off
};

/// While an object of this class exists, this thread calls operators as a new thread does: without the caller's
/// autocast, Python modes, torch.func transforms, and gradient or inference mode. They must not change an answer,
/// because the part that a server computes does not have them. Settings of the whole process stay. Scopes nest.
class PlainState {
 public:
  /// `inference`: whether new tensors are inference tensors.
  explicit PlainState(bool inference = true)
      : keys_(c10::default_included_set, c10::default_excluded_set), inference_(inference) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::InferenceMode inference_;
  Denormals denormals_;
};

}  // namespace atl::pytorch
