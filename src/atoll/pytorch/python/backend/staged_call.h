// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "atoll/collectives/call.h"
#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/library_queue.h"
#include "atoll/pytorch/python/backend/work.h"
#include "atoll/pytorch/staging/staging_queue.h"

namespace atl::pytorch {

/// A staged operation under way: what its calls share. Thread-safe.
struct StagedIssue {
  c10::intrusive_ptr<WorkAtoll> work;
  std::shared_ptr<StagedOperation> operation;
  std::weak_ptr<collectives::Group> group;  // weak: the group's own queue holds this
  std::weak_ptr<IslandLibrary> island;
  std::chrono::milliseconds timeout{};
  bool on_caller = false;  // the calling thread runs the only call
  bool has_library = false;
  std::atomic<std::size_t> chunks_left{0};
  const std::thread::id caller = std::this_thread::get_id();

  /// Notes that the copy back of one chunk has been issued, or has failed, which ends the group.
  void stored(std::exception_ptr error);
};

/// One call of a staged operation: its chunk's way from the device over the bridge and back.
class StagedCall final : public collectives::CallProgress {
 public:
  StagedCall(std::shared_ptr<StagedIssue> issue, std::shared_ptr<StagingQueue> queue,
             std::shared_ptr<LibraryQueue> library_queue, StagingQueue::EntryPtr entry)
      : issue_(std::move(issue)),
        queue_(std::move(queue)),
        library_queue_(std::move(library_queue)),
        entry_(std::move(entry)) {}

  bool is_loaded() override;
  bool comes_in_parts() const override { return entry_->chunk->comes_in_parts(); }
  bool is_loaded(std::uint32_t segment, std::uint64_t end) override { return entry_->chunk->is_loaded(segment, end); }
  void arrived(std::uint32_t segment, std::uint64_t end) override { queue_->arrived(entry_, segment, end); }

  /// Notes that the call has run: its results go back to the device.
  void crossed();

  /// Notes that the call has failed. Only a refusal leaves the group alive: the chunk leaves its queue then.
  void failed(const std::exception_ptr& error);

 private:
  void run_issuer();

  const std::shared_ptr<StagedIssue> issue_;
  const std::shared_ptr<StagingQueue> queue_;
  const std::shared_ptr<LibraryQueue> library_queue_;
  const StagingQueue::EntryPtr entry_;
};

/// Returns whether another rank has refused the operation.
bool is_refusal(const std::exception_ptr& error) noexcept;

}  // namespace atl::pytorch
