// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/waiting.h"

namespace atl::pytorch {

/// Operations of an island's library that are under way, each with what is to follow it. On an accelerator that is a matter
/// of the current stream; on the CPU somebody has to wait. Not thread-safe.
class Pending {
 public:
  /// `library` names it in errors; `waiting`: how to wait for it on the CPU.
  Pending(std::string library, bool on_accelerator, std::shared_ptr<Waiting> waiting)
      : library_(std::move(library)), streams_(on_accelerator), waiting_(std::move(waiting)) {}

  /// Calls `begin`, which issues an operation; `after` comes in its wake. Throws Error(kPeerLost) that holds the library's own
  /// message.
  void issue(const std::function<c10::intrusive_ptr<c10d::Work>()>& begin, std::function<void()> after = {});

  /// On an accelerator: what was issued.
  std::vector<c10::intrusive_ptr<c10d::Work>> works() const;

  /// Throws like issue() if an operation has failed since. Streams go on behind one that failed, with wrong values: to be asked
  /// before those values go anywhere.
  void check();

  /// Blocks until all have ended, as far as the host has to wait for that; their own timeouts bound it, and the library's being
  /// given up. (Some works make progress only while somebody waits for them, so there is nothing to poll.) Throws like issue().
  void wait();

 private:
  struct Item {
    c10::intrusive_ptr<c10d::Work> work;
    std::function<void()> after;
  };
  template <typename Body>
  auto guarded(Body&& body) -> decltype(body());

  const std::string library_;
  const bool streams_;
  const std::shared_ptr<Waiting> waiting_;
  std::vector<Item> items_;  // in order of issue
};

}  // namespace atl::pytorch
