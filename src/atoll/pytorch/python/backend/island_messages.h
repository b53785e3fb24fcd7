// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/pytorch/python/backend/group_staging.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/regions.h"

namespace atl::pytorch {

/// Messages between two ranks of one island in a group of several islands. The island's library carries them, each when
/// both ends are ready, in one order with the library's other steps. Thread-safe.
class IslandMessages {
 public:
  struct End {
    int peer = -1;
    bool sends = false;
    int tag = 0;
  };

  /// All arguments must be of the same group.
  IslandMessages(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions,
                 GroupStaging& staging)
      : open_(std::move(open)), island_(std::move(island)), regions_(regions), staging_(staging) {}

  /// Issues this rank's end of a message. Until the other end is issued, waiting for the Work blocks the host.
  WorkPtr issue(const std::shared_ptr<Library>& library, const About& about, const at::Tensor& tensor, const End& end);

 private:
  struct Message;
  static void carry(const Message& message);

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  Regions& regions_;
  GroupStaging& staging_;
};

}  // namespace atl::pytorch
