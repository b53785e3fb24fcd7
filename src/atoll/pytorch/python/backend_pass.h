// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/pytorch/python/backend.h"

namespace atl::pytorch {

// Operations that an island's library does alone: all ranks are one island, or both ends of a message are in one.

template <typename Opts>
Opts BackendAtoll::with_timeout(Opts opts) const {
  opts.timeout = own_or_group(opts.timeout);
  return opts;
}

/// `call(inner)` issues one operation, on tensors that `plain` has made.
template <typename Call>
BackendAtoll::WorkPtr BackendAtoll::pass(const std::shared_ptr<Library>& library, const PlainTensors& plain,
                                         std::chrono::milliseconds timeout, Call&& call) {
  return pass_each(library, plain, timeout, 1, [&](c10d::Backend& inner, std::size_t) { return call(inner); });
}

/// `call(inner, i)` issues the i-th of `count` operations that make one.
template <typename Call>
BackendAtoll::WorkPtr BackendAtoll::pass_each(const std::shared_ptr<Library>& library, const PlainTensors& plain,
                                              std::chrono::milliseconds timeout, std::size_t count, Call&& call) {
  begin_passing();
  const bool in_region = !plain.needs_copy_back() && open_region_of(library, own_or_group(timeout));
  const bool own_region = !in_region && count > 1 && library->in().supportsCoalescing();
  std::vector<WorkPtr> works;
  try {
    if (own_region) library->in().startCoalescing();
    for (std::size_t i = 0; i < count; ++i) {
      WorkPtr work = call(library->in(), i);
      if (!own_region && !in_region) works.push_back(std::move(work));
    }
    if (own_region) works.push_back(library->in().endCoalescing());
    works.erase(std::remove(works.begin(), works.end(), nullptr), works.end());
  } catch (...) {
    explain(std::current_exception());
  }
  if (in_region) return combined({});
  auto entry = watch_over(works, timeout);
  WorkPtr all = with_copies(plain, of_library(std::move(works), std::move(entry)));
  note_if_coalescing(all);
  return all;
}

}  // namespace atl::pytorch
