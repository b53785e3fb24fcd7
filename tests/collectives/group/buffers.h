// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "atoll/collectives/call.h"
#include "tests/support/ranks.h"

namespace atl::test {

/// The ranks or segments whose memory is in the ranks' arenas.
enum class InArena { kNone, kAll, kOddRanks, kOddSegments };

/// Segments over buffers that live as long as this object.
class Buffers {
 public:
  Buffers(Ranks& ranks, int rank, InArena where) {
    if (where == InArena::kAll || where == InArena::kOddSegments || (where == InArena::kOddRanks && rank % 2 == 1))
      arena_ = ranks.context(rank)->endpoint().options().arena;
    every_ = where == InArena::kOddSegments ? 2 : 1;
  }
  ~Buffers() {
    for (void* const data : lent_) arena_->free(data);
  }

  std::vector<collectives::Segment> add(std::vector<std::vector<std::byte>> list) {
    std::vector<collectives::Segment> segments;
    for (auto& bytes : list) {
      storage_.push_back(std::move(bytes));
      std::vector<std::byte>& own = storage_.back();
      segments.push_back({own.data(), own.size()});
      if (!arena_ || own.empty() || ++count_ % every_ != 0) continue;
      lent_.push_back(arena_->allocate(own.size()));
      segments.back().data = static_cast<std::byte*>(std::memcpy(lent_.back(), own.data(), own.size()));
    }
    return segments;
  }

 private:
  std::shared_ptr<transport::Arena> arena_;
  std::size_t every_ = 1;
  std::size_t count_ = 0;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<void*> lent_;
};

}  // namespace atl::test
