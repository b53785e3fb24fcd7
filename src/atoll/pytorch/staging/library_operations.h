// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/abortable_waiter.h"

namespace atl::pytorch {

/// Operations of an island's library that are under way, with their continuations. On an accelerator the current stream
/// waits for them; on the CPU a thread has to. Not thread-safe.
class LibraryOperations {
 public:
  /// `library`: its name, for errors. `waiter` waits for its works on the CPU; null on an accelerator.
  LibraryOperations(std::string library, bool on_accelerator, std::shared_ptr<AbortableWaiter> waiter)
      : library_(std::move(library)), on_accelerator_(on_accelerator), waiter_(std::move(waiter)) {}

  /// Calls `begin`, which issues an operation; `after` runs, or is issued, when it has ended. Throws Error(kPeerLost)
  /// with the library's own message.
  void issue(const std::function<c10::intrusive_ptr<c10d::Work>()>& begin, std::function<void()> after = {});

  /// All works issued on an accelerator.
  std::vector<c10::intrusive_ptr<c10d::Work>> works() const;

  /// Throws like issue() if an operation has failed since. Must be called before the results are used: streams continue
  /// after a failed operation, with wrong values.
  void check();

  /// Blocks until all have ended, if the host has to wait for them; ends at their own timeouts, or when the library is
  /// aborted. (Some works make progress only while a thread waits for them, so they cannot be polled.) Throws like
  /// issue().
  void wait();

 private:
  struct Item {
    c10::intrusive_ptr<c10d::Work> work;
    std::function<void()> after;
  };
  template <typename Body>
  auto guarded(Body&& body) -> decltype(body());

  const std::string library_;
  const bool on_accelerator_;
  const std::shared_ptr<AbortableWaiter> waiter_;
  std::vector<Item> items_;  // in order of issue
};

}  // namespace atl::pytorch
