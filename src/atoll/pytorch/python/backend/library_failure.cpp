// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/library_failure.h"

#include <thread>

#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kErrorPollInterval{1};

}  // namespace

std::exception_ptr account_of_library_failure(collectives::Group& group, const Error& error,
                                              std::chrono::milliseconds wait) {
  const Deadline limit = Deadline::after(wait);
  while (!group.error() && !limit.expired()) std::this_thread::sleep_for(kErrorPollInterval);
  group.fail(error);
  return group.error();
}

void note_raised(const std::weak_ptr<Watchdog>& watchdog, collectives::Group& group) {
  const auto live = watchdog.lock();
  const auto failed = group.error();
  if (!live || !failed) return;
  const ReleaseGil interrupter_may_need_it;
  try {
    std::rethrow_exception(failed);
  } catch (const Error& error) {
    live->note_raised(&group, error);
  }
}

}  // namespace atl::pytorch
