// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/autograd_threads.h"

#include <torch/csrc/autograd/engine.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "atoll/core/deadline.h"

namespace atl::sim {
namespace {

constexpr std::chrono::milliseconds kMaxEndingTime{2000};
constexpr std::chrono::milliseconds kPause{1};

bool has_autograd_threads() {
  std::error_code gone;  // a thread may end while it is examined
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("pt_autograd_", 0) == 0) return true;
  }
  return false;
}

}  // namespace

void end_autograd_threads() {
  if (!has_autograd_threads()) return;
  torch::autograd::Engine::get_default_engine().stop();
  // stop() waits until they have left their loops, but each takes the GIL once more before it ends.
  const Deadline limit = Deadline::after(kMaxEndingTime);
  while (has_autograd_threads() && !limit.expired()) std::this_thread::sleep_for(kPause);
}

}  // namespace atl::sim
