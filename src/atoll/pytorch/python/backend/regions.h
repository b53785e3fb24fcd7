// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/plain.h"

namespace atl::pytorch {

/// Whoever gave strided tensors waits here until they can be filled: on an accelerator only its current stream does.
void fill(const PlainTensors& plain, c10d::Work& work);

/// The coalescing regions of a group, at most one for each thread: what a thread issues between begin() and end() is issued at
/// once but asynchronously, and becomes one Work. Thread-safe.
class Regions {
 public:
  Regions(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island);

  void begin();

  /// The Work for all; throws c10::Error when this thread has begun no region.
  WorkPtr end();

  /// Whether the calling thread is in a region.
  bool is_open() const;

  /// `work` belongs to the calling thread's region, if there is one.
  void note(const WorkPtr& work);

  /// Lets `library` take part in the calling thread's region with an operation that may last for `timeout`. Returns whether it
  /// does: where there is a region, and the library knows of such.
  bool let_in(const std::shared_ptr<Library>& library, std::chrono::milliseconds timeout);

  /// What an operation that was let in returns for itself; only the region's Work stands for it. The tensors that it was
  /// issued with are `plain`.
  WorkPtr stand_in(const PlainTensors& plain);

 private:
  struct Region {
    std::vector<WorkPtr> works;
    std::shared_ptr<Library> library;     // has a region of its own open
    std::chrono::milliseconds timeout{};  // the longest of its operations'
    std::vector<PlainTensors> strided;    // to be filled behind them
  };
  WorkPtr combined(std::vector<WorkPtr> works) const;

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  std::atomic<int> count_{0};  // so that calls outside every region need no lock
  mutable std::mutex mutex_;
  std::map<std::thread::id, Region> regions_;
};

}  // namespace atl::pytorch
