// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/worker/device_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "atoll/core/error.h"

namespace atl::pytorch {
namespace {

// PyTorch for ROCm calls its devices "cuda" as well.
std::vector<std::string> libraries_of(const std::string& kind) {
  std::vector<std::string> names{"libtorch_" + kind + ".so"};
  if (kind == "cuda") names.emplace_back("libtorch_hip.so");
  return names;
}

int note_path(dl_phdr_info* info, std::size_t /*size*/, void* found) {
  static_cast<std::vector<std::filesystem::path>*>(found)->emplace_back(info->dlpi_name);
  return 0;
}

// cuDNN loads its other libraries one by one, when an operator first needs one. A library that cannot be loaded here
// could not be loaded later either.
void load_deferred_libraries() {
  std::vector<std::filesystem::path> loaded;
  dl_iterate_phdr(note_path, &loaded);
  std::set<std::filesystem::path> folders;
  for (const auto& path : loaded) {
    if (path.filename().string().rfind("libcudnn", 0) == 0) folders.insert(path.parent_path());
  }
  for (const auto& folder : folders) {
    std::error_code unreadable;
    for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("libcudnn", 0) == 0 && name.find(".so") != std::string::npos) {
        ::dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
  }
}

}  // namespace

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
  throw Error(ErrorKind::kUnavailable, "PyTorch's library for " + device + " cannot be loaded: " + why);
}

}  // namespace atl::pytorch
