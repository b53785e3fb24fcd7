// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/package_engine.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/named.h"
#include "atoll/pytorch/aten/plain_state.h"
#include "atoll/pytorch/aten/streams.h"

namespace atl::pytorch {
namespace {

constexpr const char* kModel = "model";  // the compiler's default name
constexpr const char* kCheckInputs = "AOTI_RUNTIME_CHECK_INPUTS";
constexpr const char* kDevice = "AOTI_DEVICE_KEY";

class PackageEngine final : public infer::LocalEngine {
 public:
  PackageEngine(const std::string& path, c10::Device device)
      : name_("the package " + path),
        device_(device),
        loader_(path, kModel, false, 1, device.has_index() ? device.index() : c10::DeviceIndex{-1}) {}

  // The kind of device, such as "cpu"; empty if the package does not name it.
  std::string made_for() {
    const auto facts = loader_.get_metadata();
    const auto found = facts.find(kDevice);
    return found == facts.end() ? std::string() : found->second;
  }

  std::vector<infer::Value> run(std::span<const infer::Value> inputs) override {
    return named(name_, [&] {
      const PlainState state;
      const c10::DeviceGuard guard(device_);
      std::vector<at::Tensor> tensors;
      for (const infer::Value& input : inputs) tensors.push_back(tensor_of(input));
      std::vector<infer::Value> made;
      for (at::Tensor& output : loader_.run(tensors)) made.push_back(value_of(std::move(output)));
      wait_for(device_);
      return made;
    });
  }

 private:
  const std::string name_;
  const c10::Device device_;
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace

std::shared_ptr<infer::LocalEngine> load_package_engine(const std::string& path, const std::string& device) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorKind::kUnavailable,
                "the package " + path + " is not there: torch._inductor.aoti_compile_and_package makes one");
  }
  ::setenv(kCheckInputs, "1", 0);
  return named("the package " + path, [&] {
    const c10::Device place(device);
    auto engine = std::make_shared<PackageEngine>(path, place);
    const std::string made_for = engine->made_for();
    const std::string kind = c10::DeviceTypeName(place.type(), true);
    if (!made_for.empty() && made_for != kind) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the package " + path + " was made for " + made_for + ", and the session computes on " + kind);
    }
    return std::shared_ptr<infer::LocalEngine>(std::move(engine));
  });
}

}  // namespace atl::pytorch
