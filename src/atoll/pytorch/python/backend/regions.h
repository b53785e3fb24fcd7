// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
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

/// Calls `end`, which ends regions after an exception; logs its own.
void end_quietly(const std::function<void()>& end) noexcept;

/// Copies results back to strided tensors. Waits for `work` first; on an accelerator only the current stream waits.
void fill(const PlainTensors& plain, c10d::Work& work);

/// The coalescing regions of a group, at most one per thread: operations that a thread issues between begin() and end()
/// are issued at once but asynchronously, and become one Work. Thread-safe.
class Regions {
 public:
  Regions(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island);

  void begin();

  /// Returns one Work for all operations. Throws c10::Error if this thread has not started a region.
  WorkPtr end();

  /// Has the library begin what has joined the calling thread's region so far: until then it holds back all that the
  /// thread issues, in other groups too.
  void flush();

  /// Returns whether the calling thread is in a region.
  bool is_open() const;

  /// Adds `work` to the calling thread's region, if there is one.
  void note(const WorkPtr& work);

  /// Starts a region of `library` within the calling thread's region, for an operation on tensors of `device` that may
  /// last for `timeout`. Returns false if there is no region, or the library does not support regions.
  bool try_join(const std::shared_ptr<Library>& library, c10::Device device, std::chrono::milliseconds timeout);

  /// Returns a placeholder for the Work of an operation that joined; only the region's Work completes with it.
  /// `plain`: the tensors with which it was issued.
  WorkPtr placeholder(const PlainTensors& plain);

 private:
  // The operations that have joined. `library` has an open region of its own, and is null if there are none.
  struct Joined {
    std::shared_ptr<Library> library;
    c10::Device device = c10::kCPU;
    std::chrono::milliseconds timeout{};  // the longest
    std::vector<PlainTensors> strided;    // filled after them
  };
  struct Region {
    std::vector<WorkPtr> works;
    Joined joined;
  };
  WorkPtr ended(const Joined& joined) const;
  WorkPtr combined(std::vector<WorkPtr> works) const;

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  std::atomic<int> count_{0};  // so that calls outside regions need no lock
  mutable std::mutex mutex_;
  std::map<std::thread::id, Region> regions_;
};

}  // namespace atl::pytorch
