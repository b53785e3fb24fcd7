// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/plain_state.h"

#include <ATen/Parallel.h>

#include "atoll/collectives/reduce/float_mode.h"

namespace atl::pytorch {
namespace {

using collectives::detail::float_mode;
using collectives::detail::kFlushesSubnormals;
using collectives::detail::set_float_mode;

// Runs `body` on each thread that operators of this one use, itself included.
template <typename Body>
void on_threads(std::size_t count, Body&& body) {
  at::parallel_for(0, static_cast<std::int64_t>(count), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(static_cast<std::size_t>(i));
  });
}

}  // namespace

Denormals::Denormals() {
  if ((float_mode() & kFlushesSubnormals) == 0) return;
  before_.resize(static_cast<std::size_t>(at::get_num_threads()));
  on_threads(before_.size(), [this](std::size_t i) {
    before_[i] = float_mode();
    set_float_mode(before_[i] & ~kFlushesSubnormals);
  });
}

Denormals::~Denormals() {
  if (before_.empty()) return;
  on_threads(before_.size(), [this](std::size_t i) { set_float_mode(before_[i]); });
}

}  // namespace atl::pytorch
