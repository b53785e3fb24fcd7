// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace atl::pytorch {

/// While an object of this class exists, its thread and the threads that operators use for it do not flush denormal
/// numbers to zero, even if torch.set_flush_denormal is on. Costs nothing if it is off.
class Denormals {
 public:
  Denormals();
  ~Denormals();
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
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
