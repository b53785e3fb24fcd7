// SPDX-License-Identifier: Apache-2.0
// atoll_infer_worker DEVICE THREADS BYTES SECONDS: serves the model of one client. Started by infer/serve.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "atoll/infer/link/worker_descriptors.h"
#include "atoll/infer/safety/sandbox.h"
#include "atoll/infer/worker/worker.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/aten/operator_runner.h"
#include "atoll/pytorch/worker/device_library.h"

namespace {

constexpr int kDescriptorsOfDrivers = 1024;  // drivers open their devices many times

// Libraries query the processor at first use, which the sandbox would not allow.
void warm_up(const std::string& device) {
  const c10::InferenceMode inference;
  const at::Tensor image = at::ones({1, 4, 8, 8}, at::TensorOptions().device(c10::Device(device)));
  const at::Tensor rows = at::conv2d(image, at::ones({4, 4, 3, 3}, image.options())).flatten(1);
  at::linear(rows, at::ones({2, rows.size(1)}, image.options())).cpu();
}

int serve(const std::string& device, int threads, std::int64_t memory_bytes, double profile_seconds) {
  const pid_t server = ::getppid();
  ::close_range(atl::infer::kFirstWorkerDescriptor + atl::infer::kWorkerDescriptors, ~0U, 0);
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
  atl::pytorch::load_device_library(device);
  auto runner = atl::pytorch::make_operator_runner(device);
  warm_up(device);
  atl::infer::WorkerOptions options;
  options.profile_seconds = profile_seconds;
  options.enter_sandbox = [&] {
    atl::infer::safety::SandboxOptions sandbox;
    sandbox.parent = server;
    sandbox.device = device != "cpu";
    sandbox.memory_bytes = sandbox.device ? 0 : memory_bytes;
    if (sandbox.device) sandbox.descriptors = kDescriptorsOfDrivers;
    atl::infer::safety::enter_sandbox(sandbox);
  };
  return atl::infer::run_worker(std::move(runner), std::move(options));
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) {
    std::fputs("atoll_infer_worker is started by `atoll serve`, not by hand\n", stderr);
    return 2;
  }
  try {
    atl::logging::install_spdlog_sink();
    return serve(words[1], std::stoi(words[2]), std::stoll(words[3]), std::stod(words[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "atoll worker %d: %s\n", static_cast<int>(::getpid()), error.what());
    return 1;
  }
}
