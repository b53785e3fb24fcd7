// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/interrupts.h"

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kSignalPollInterval{50};

bool is_main_thread() { return ::getpid() == ::gettid() && Py_IsInitialized() != 0; }

}  // namespace

void check_signals() {
  if (!is_main_thread()) return;
  const py::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void interruptible(std::function<void()> body) {
  if (!is_main_thread()) return body();
  std::packaged_task<void()> task(std::move(body));
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  while (done.wait_for(kSignalPollInterval) != std::future_status::ready) check_signals();
  done.get();
}

}  // namespace atl::pytorch
