// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/local_engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "atoll/core/deadline.h"

namespace atl::infer {

double measured_seconds(LocalEngine& engine, const LoadedModel& model) {
  constexpr int kRuns = 3;
  std::vector<Value> inputs;
  for (const int input : model.graph().inputs) {
    const Tensor& type = model.graph().tensors[static_cast<std::size_t>(input)];
    const auto zeros = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(type.bytes()));
    inputs.push_back(model.runner().from_host(type, {*zeros, zeros}));
  }
  engine.run(inputs);
  model.runner().wait();
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    const Clock::time_point begin = Clock::now();
    engine.run(inputs);
    model.runner().wait();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

}  // namespace atl::infer
