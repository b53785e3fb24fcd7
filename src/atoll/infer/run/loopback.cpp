// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/loopback.h"

#include <utility>

namespace atl::infer {

void Loopback::close(std::exception_ptr error) {
  const std::lock_guard lock(link_.mutex);
  if (!link_.error) link_.error = std::move(error);
  link_.changed.notify_all();
}

void Loopback::End::send(int tensor, Region rows, HostBytes bytes) {
  const std::lock_guard lock(link_.mutex);
  to_[{tensor, rows.begin, rows.end}] = std::move(bytes);
  link_.changed.notify_all();
}

std::optional<HostBytes> Loopback::End::receive(int tensor, Region rows, Deadline until) {
  std::unique_lock lock(link_.mutex);
  for (;;) {
    const auto found = from_.find({tensor, rows.begin, rows.end});
    if (found != from_.end()) {
      HostBytes bytes = std::move(found->second);
      from_.erase(found);
      return bytes;
    }
    if (link_.error) std::rethrow_exception(link_.error);
    if (until.is_never()) {
      link_.changed.wait(lock);
    } else if (link_.changed.wait_until(lock, until.when()) == std::cv_status::timeout) {
      return std::nullopt;
    }
  }
}

}  // namespace atl::infer
