// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace atl::pytorch {

/// While one lives, its thread and the threads that operators use for it do not round denormal numbers to zero, whatever
/// torch.set_flush_denormal has set there before. Costs nothing where it is not set.
class Denormals {
 public:
  Denormals();
  ~Denormals();
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
  std::vector<unsigned> before_;  // the control words, by thread; empty: nothing was set
};

/// While one lives, this thread calls operators as a new thread does: without the autocast, the modes of Python, the transforms
/// of torch.func and the gradient or inference mode of whoever called. Nothing of those may change an answer, because the
/// part that a server computes does not have them. What is set for the whole process stays. Nests.
class PlainState {
 public:
  /// `inference`: whether tensors that are made are inference tensors.
  explicit PlainState(bool inference = true)
      : keys_(c10::default_included_set, c10::default_excluded_set), inference_(inference) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::InferenceMode inference_;
  Denormals denormals_;
};

}  // namespace atl::pytorch
