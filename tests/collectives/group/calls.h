// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <future>
#include <optional>
#include <vector>

#include "atoll/collectives/group/group.h"

namespace atl::test {

/// The sum over all ranks, in place.
inline collectives::Call all_reduce(std::vector<float>& data, std::optional<std::chrono::milliseconds> timeout = {}) {
  collectives::Call call;
  call.input = call.output = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
  call.timeout = timeout;
  return call;
}

/// Runs or submits the call and waits until it is done; throws its error.
inline void run_or_submit(collectives::Group& group, const collectives::Call& call, bool submitted) {
  if (!submitted) return group.run(call);
  std::promise<void> done;
  group.submit(call, [&](std::exception_ptr error) { error ? done.set_exception(error) : done.set_value(); });
  done.get_future().get();
}

}  // namespace atl::test
