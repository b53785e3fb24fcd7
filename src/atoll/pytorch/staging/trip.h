// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/pending.h"

namespace atl::pytorch {

/// One operation whose tensors come to the bridge in pieces and go back: from an accelerator, or through a library on the CPU.
/// Pieces are loaded and stored in order, by one thread at a time; the functions for those who wait are thread-safe.
class Trip {
 public:
  /// One of CopyStreams' functions.
  using Way = c10::Stream (CopyStreams::*)() const;

  /// Made on the caller's thread, behind what the caller has issued on its current stream. Throws c10::Error while that stream
  /// is being captured into a graph, which cannot hold what happens between hosts. `streams`: on which the tensors travel; for
  /// those on the CPU none. `last`: on which the results arrive. `library`: that works inside the island, null: none.
  Trip(Operands operands, std::shared_ptr<const CopyStreams> streams, Way last, const Library* library,
       std::size_t pieces);

  const Operands& operands() const noexcept { return operands_; }
  c10::Device device() const noexcept { return device_; }
  bool on_accelerator() const noexcept { return streams_ != nullptr; }
  const CopyStreams& streams() const { return *streams_; }

  /// What is issued on `stream` from now on comes after what the caller had issued.
  void follow_caller(const c10::Stream& stream) const { begun_->block(stream); }

  /// Whether all of that has ended.
  bool caller_is_there() const { return begun_->query(); }

  /// The library's operations behind the bridge.
  Pending& outward() noexcept { return outward_; }

  /// After each piece; the last one completes the tensors.
  void piece_stored();

  // For those who wait, once every piece is stored.

  /// Whether finish() may block.
  bool must_finish() const noexcept { return !on_accelerator(); }

  /// Blocks until the results are there; where they arrive on a stream, returns at once. Throws what the library throws.
  void finish();

  /// Makes the calling thread's current stream wait until the results have arrived.
  void wait_on_current_stream() const;

  /// What is to be done by whoever relies on results that the device has not got yet: `note(is_future)` is called when somebody
  /// does. Before any such call, and before the last piece is stored.
  void on_reliance(std::function<void(bool is_future)> note) { note_ = std::move(note); }

  /// Somebody does, through a future or else by waiting.
  void note_reliance(bool is_future) const {
    if (note_) note_(is_future);
  }

  /// Calls `action` while the stream on which the results arrive is current. Throws what a device that has failed says.
  template <typename Action>
  void on_arrival(Action&& action) const {
    std::optional<c10::StreamGuard> guard;
    if (on_accelerator()) {
      guard.emplace(last_stream());
      if (arrived_) arrived_->query();  // throws here rather than half-way through `action`
    }
    action();
  }

  /// Lets go of the tensors; what is under way keeps what it needs.
  void release() { operands_ = {}; }

 private:
  c10::Stream last_stream() const { return ((*streams_).*last_)(); }

  Operands operands_;
  const c10::Device device_;
  const std::shared_ptr<const CopyStreams> streams_;
  const Way last_;
  std::size_t pieces_left_;
  std::optional<c10::Event> begun_;
  std::optional<c10::Event> arrived_;
  std::function<void(bool)> note_;
  Pending outward_;
};

}  // namespace atl::pytorch
