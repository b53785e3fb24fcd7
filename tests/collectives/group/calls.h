// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
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

/// The progress of a call whose input is in memory once `is_loaded` returns true.
inline std::shared_ptr<collectives::CallProgress> loaded_once(std::function<bool()> is_loaded) {
  struct Progress final : collectives::CallProgress {
    explicit Progress(std::function<bool()> is_loaded) : is_loaded_(std::move(is_loaded)) {}
    bool is_loaded() override { return is_loaded_(); }
    const std::function<bool()> is_loaded_;
  };
  return std::make_shared<Progress>(std::move(is_loaded));
}

/// Runs or submits the call and waits until it is done; throws its error.
inline void run_or_submit(collectives::Group& group, const collectives::Call& call, bool submitted) {
  if (!submitted) return group.run(call);
  std::promise<void> done;
  group.submit(call, [&](std::exception_ptr error) { error ? done.set_exception(error) : done.set_value(); });
  done.get_future().get();
}

}  // namespace atl::test
