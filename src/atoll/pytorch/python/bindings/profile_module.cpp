// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "atoll/infer/bundle/bundle.h"
#include "atoll/infer/client/server_profile.h"
#include "atoll/infer/run/measure.h"
#include "atoll/infer/wire/codecs.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/operator_runner.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::pytorch {
namespace {

namespace wire = infer::wire;

// Reports progress to Python, and lets Ctrl+C end the call. What Python raises passes unchanged.
template <typename... Facts>
void report_progress(const py::object& progress, const Facts&... facts) {
  const py::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  if (!progress.is_none()) progress(facts...);
}

std::string profile_here(const std::string& folder, const std::string& device, int rounds, const py::object& progress) {
  const ReleaseGil released;
  infer::Bundle bundle = infer::load_bundle(folder);
  const infer::LoadedModel model(std::move(bundle.graph), bundle.weights, make_operator_runner(device));
  const infer::SplitDim along = infer::usual_split(model.graph());
  const infer::Operators operators = infer::operators_of(model.graph(), along.input_tensor, along.dim);
  infer::Profile profile = infer::measure_rounds(model, operators, rounds, [&](std::size_t done, std::size_t of) {
    report_progress(progress, done, of);
    return true;
  });
  profile.runner = std::string("torch ") + TORCH_VERSION;
  profile.model = infer::text_of(bundle.hash);
  return infer::to_json(profile);
}

std::string profile_there(const std::string& folder, const std::string& server, const std::string& key_file,
                          double seconds, const py::object& progress) {
  const std::chrono::nanoseconds limit = checked_seconds("seconds", seconds);
  const ReleaseGil released;
  infer::Bundle bundle = infer::load_bundle(folder);
  infer::ClientOptions options;
  options.server = server;
  options.name = "atoll profile";
  options.credentials = transport::Credentials::of_key_file(key_file);
  options.probe_bytes = 0;
  const infer::ModelFiles files{bundle.hash, std::move(bundle.graph_text), bundle.weight_file};
  const Deadline deadline = Deadline::after(limit);
  infer::Profile profile = infer::profile_of_server(options, files, deadline, [&](const infer::LinkStatus& status) {
    report_progress(progress, status.text);
    return true;
  });
  profile.model = infer::text_of(bundle.hash);
  return infer::to_json(profile);
}

using PackingLoss = std::tuple<std::string, std::size_t, double, double>;

PackingLoss packing_loss(const at::Tensor& tensor, const std::string& name) {
  for (const wire::Codec codec : {wire::Codec::kHalf, wire::Codec::kInt8, wire::Codec::kJpeg}) {
    if (name != wire::to_string(codec)) continue;
    const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
    const infer::Tensor type{dtype_of(host.scalar_type()), host.sizes().vec()};
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes());
    const wire::Packed packed = wire::pack(codec, type, bytes);
    const wire::Loss loss = wire::loss_of(packed.codec, type, bytes, packed.bytes);
    const std::size_t size = packed.codec == wire::Codec::kRaw ? bytes.size() : packed.bytes.size();
    return {wire::to_string(packed.codec), size, loss.max, loss.mean};
  }
  throw Error(ErrorKind::kInvalidArgument, "the codec \"" + name + "\" is not known: give half, int8 or jpeg");
}

}  // namespace

void bind_profile(py::module_& module) {
  module.def("infer_profile", &profile_here, py::arg("bundle"), py::arg("device"), py::arg("rounds"),
             py::arg("progress") = py::none());
  module.def("infer_server_profile", &profile_there, py::arg("bundle"), py::arg("server"), py::arg("key_file"),
             py::arg("seconds"), py::arg("progress") = py::none());
  module.def("infer_packing_loss", &packing_loss, py::arg("tensor"), py::arg("codec"), py::call_guard<ReleaseGil>());
}

}  // namespace atl::pytorch
