// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/regions.h"

#include <algorithm>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {

void end_quietly(const std::function<void()>& end) noexcept {
  try {
    end();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "while ending a library's region after an error: " + plain_text(error));
  }
}

void fill(const PlainTensors& plain, c10d::Work& work) {
  if (!plain.needs_copy_back()) return;
  work.wait();
  plain.copy_back();
}

Regions::Regions(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island)
    : open_(std::move(open)), island_(std::move(island)) {}

void Regions::begin() {
  flush();
  Region left_open;  // by an exception; its works are released without the mutex
  const std::lock_guard lock(mutex_);
  std::swap(regions_[std::this_thread::get_id()], left_open);
  count_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
}

WorkPtr Regions::end() {
  Region region;
  {
    const std::lock_guard lock(mutex_);
    const auto known = regions_.find(std::this_thread::get_id());
    TORCH_CHECK(known != regions_.end(), "end of a coalescing region that this thread has not started");
    region = std::move(known->second);
    regions_.erase(known);
    count_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
  }
  if (const WorkPtr last = ended(region.joined)) region.works.push_back(last);
  return combined(std::move(region.works));
}

void Regions::flush() {
  if (!is_open()) return;
  Joined joined;
  {
    const std::lock_guard lock(mutex_);
    std::swap(regions_[std::this_thread::get_id()].joined, joined);
  }
  note(ended(joined));
}

// Returns the Work of the operations; null if there are none.
WorkPtr Regions::ended(const Joined& joined) const {
  if (!joined.library) return nullptr;
  WorkPtr returned;
  try {
    returned = joined.library->in().endCoalescing();
  } catch (...) {
    island_->explain(std::current_exception());
  }
  WorkPtr work = island_->watched_work_of({returned}, joined.device, joined.timeout);
  for (const PlainTensors& each : joined.strided) fill(each, *work);
  return work;
}

bool Regions::is_open() const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  return regions_.count(std::this_thread::get_id()) > 0;
}

void Regions::note(const WorkPtr& work) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  const auto region = regions_.find(std::this_thread::get_id());
  if (region != regions_.end() && work) region->second.works.push_back(work);
}

bool Regions::try_join(const std::shared_ptr<Library>& library, c10::Device device, std::chrono::milliseconds timeout) {
  if (!is_open() || !library->in().supportsCoalescing()) return false;
  const std::lock_guard lock(mutex_);
  Joined& joined = regions_[std::this_thread::get_id()].joined;
  if (!joined.library) {
    library->in().startCoalescing();
    joined.library = library;
    joined.device = device;
  }
  joined.timeout = std::max(joined.timeout, timeout);
  return true;
}

// Not before the region's end: other ranks may wait for what the region still issues before they send.
WorkPtr Regions::placeholder(const PlainTensors& plain) {
  if (plain.needs_copy_back()) {
    const std::lock_guard lock(mutex_);
    regions_[std::this_thread::get_id()].joined.strided.push_back(plain);
  }
  return combined({});
}

WorkPtr Regions::combined(std::vector<WorkPtr> works) const {
  if (works.size() == 1) return works.front();
  Tensors outputs;
  std::vector<c10::intrusive_ptr<WorkAtoll>> own;
  for (const WorkPtr& work : works) {
    auto* const known =
        dynamic_cast<WorkAtoll*>(work.get());  // PyTorch's cast of intrusive pointers drops the pointer on failure
    if (!known) return island_->work_of(std::move(works), nullptr);  // each is already watched
    outputs.insert(outputs.end(), known->outputs().begin(), known->outputs().end());
    own.push_back(c10::intrusive_ptr<WorkAtoll>::reclaim_copy(known));
  }
  auto all = open_->new_work({c10d::OpType::COALESCED, "atoll:coalesced", c10d::kUnsetTimeout, true}, Operands(), {},
                             std::move(outputs));
  if (own.empty()) {
    all->done_on_caller(nullptr);
    return all;
  }
  all->consists_of(own);
  return all;
}

}  // namespace atl::pytorch
