// SPDX-License-Identifier: Apache-2.0
// atoll_infer_worker DEVICE THREADS BYTES SECONDS: serves the model of one client. Started by infer/serve.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/link/worker_descriptors.h"
#include "atoll/infer/safety/sandbox.h"
#include "atoll/infer/worker/worker.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/aten/operator_runner.h"

namespace {

constexpr int kDescriptorsOfDrivers = 1024;  // drivers open their devices many times

// PyTorch for ROCm calls its devices "cuda" as well.
std::vector<std::string> libraries_of(const std::string& kind) {
  std::vector<std::string> names{"libtorch_" + kind + ".so"};
  if (kind == "cuda") names.emplace_back("libtorch_hip.so");
  return names;
}

// cuDNN loads its other libraries one by one, when an operator first needs one. A library that cannot be loaded here
// could not be loaded later either.
void load_deferred_libraries() {
  std::set<std::filesystem::path> folders;
  const auto note_folder = [](dl_phdr_info* info, std::size_t /*size*/, void* found) {
    const std::filesystem::path path(info->dlpi_name);
    if (path.filename().string().starts_with("libcudnn"))
      static_cast<std::set<std::filesystem::path>*>(found)->insert(path.parent_path());
    return 0;
  };
  dl_iterate_phdr(note_folder, &folders);
  for (const auto& folder : folders) {
    std::error_code unreadable;
    for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("libcudnn") && name.find(".so") != std::string::npos) {
        ::dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
  }
}

// Loads PyTorch's library for a device such as "cuda:0", which Python's module would load, and what that library would
// itself load later, when the sandbox no longer allows it. Does nothing for "cpu". Throws Error(kUnavailable) if there
// is no such library or device.
void load_device_library(const std::string& device) {
  const std::string kind = device.substr(0, device.find(':'));
  if (kind == "cpu") return;
  std::string why;
  for (const std::string& name : libraries_of(kind)) {
    if (::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      at::globalContext().lazyInitDevice(c10::Device(device).type());
      load_deferred_libraries();
      return;
    }
    const char* const reason = ::dlerror();
    why += (why.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name.c_str());
  }
  throw atl::Error(atl::ErrorKind::kUnavailable, "PyTorch's library for " + device + " cannot be loaded: " + why);
}

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
  load_device_library(device);
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
