// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/library_failure.h"

#include <thread>

#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kWaitForReport{1000};
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

std::exception_ptr account_of_library_failure(collectives::Group& group, const Error& error) {
  const Deadline limit = Deadline::after(kWaitForReport);
  while (!group.error() && !limit.expired()) std::this_thread::sleep_for(kPause);
  group.fail(error);
  return group.error();
}

void note_told(const std::weak_ptr<Watch>& watch, collectives::Group& group) {
  const auto live = watch.lock();
  if (!live || !group.error()) return;
  const ReleaseGil who_interrupts_needs_it;
  live->note_told(&group);
}

}  // namespace atl::pytorch
