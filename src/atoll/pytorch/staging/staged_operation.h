// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/library_operations.h"
#include "atoll/pytorch/staging/operands.h"

namespace atl::pytorch {

/// One operation whose tensors go to the bridge and back in chunks: from an accelerator, or through a library on the
/// CPU. Chunks are loaded and stored in order, by one thread at a time; the functions for waiting threads are
/// thread-safe.
class StagedOperation {
 public:
  /// A function of CopyStreams that returns one of its streams.
  using StreamOf = c10::Stream (CopyStreams::*)() const;

  /// Must be constructed on the caller's thread: the operation follows what the caller has issued on its current
  /// stream. Throws c10::Error while that stream is being captured into a graph. `streams`: those that copy the
  /// tensors; null for the CPU. `last`: the one on which the results arrive. `library`: the island's, or null.
  /// `chunks`: how many times chunk_stored() will be called.
  StagedOperation(Operands operands, std::shared_ptr<const CopyStreams> streams, StreamOf last, const Library* library,
                  std::size_t chunks);

  const Operands& operands() const noexcept { return operands_; }
  c10::Device device() const noexcept { return device_; }
  bool on_accelerator() const noexcept { return streams_ != nullptr; }
  const CopyStreams& streams() const { return *streams_; }

  /// Makes what is issued on `stream` from now on follow what the caller had issued.
  void follow_caller(const c10::Stream& stream) const { caller_event_->block(stream); }

  /// Returns whether the work that the caller had issued has ended.
  bool caller_is_ready() const { return caller_event_->query(); }

  /// The library's operations after the bridge.
  LibraryOperations& outward() noexcept { return outward_; }

  /// Called once per chunk; the last call completes the tensors.
  void chunk_stored();

  // For waiting threads, once every chunk is stored.

  /// Returns whether finish() may block.
  bool must_finish() const noexcept { return !on_accelerator(); }

  /// Blocks until the results are valid; if they arrive on a stream, returns at once. Throws what the library throws.
  void finish();

  /// Makes the calling thread's current stream wait until the results have arrived.
  void wait_on_current_stream() const;

  /// Sets the function that note_reliance() calls. Must be called before any note_reliance() and before the last chunk
  /// is stored.
  void on_reliance(std::function<void(bool is_future)> note) { note_ = std::move(note); }

  /// Notes that the calling thread, or a future, relies on results that may not have reached the device yet.
  void note_reliance(bool is_future) const {
    if (note_) note_(is_future);
  }

  /// Calls `action` while the stream on which the results arrive is current. Throws the error of a device that has
  /// failed.
  template <typename Action>
  void on_arrival(Action&& action) const {
    std::optional<c10::StreamGuard> guard;
    if (on_accelerator()) {
      guard.emplace(last_stream());
      if (arrived_) arrived_->query();  // throws here rather than half-way through `action`
    }
    action();
  }

  /// Releases the tensors; operations under way keep what they need.
  void release() { operands_ = {}; }

 private:
  c10::Stream last_stream() const { return ((*streams_).*last_)(); }

  Operands operands_;
  const c10::Device device_;
  const std::shared_ptr<const CopyStreams> streams_;
  const StreamOf last_;
  std::size_t chunks_left_;
  std::optional<c10::Event> caller_event_;
  std::optional<c10::Event> arrived_;
  std::function<void(bool)> note_;
  LibraryOperations outward_;
};

}  // namespace atl::pytorch
