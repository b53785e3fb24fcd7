// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/session_module.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/infer/session/session.h"
#include "atoll/infer/wire/codecs.h"
#include "atoll/plan/operators_json.h"
#include "atoll/plan/timeline.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/operator_runner.h"
#include "atoll/pytorch/aten/package_engine.h"
#include "atoll/pytorch/python/callable_engine.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/credentials.h"

namespace atl::pytorch {
namespace {

namespace wire = infer::wire;
using Seconds = std::chrono::duration<double>;

infer::HostBytes bytes_of(const at::Tensor& tensor) {
  const auto host = std::make_shared<const at::Tensor>(tensor.to(at::kCPU).contiguous());
  return {{static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes()}, host};
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(seconds));
}

wire::Codec codec_of(const std::string& name) {
  for (const wire::Codec codec : {wire::Codec::kHalf, wire::Codec::kInt8, wire::Codec::kJpeg}) {
    if (name == wire::to_string(codec)) return codec;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "lossy \"" + name + "\" is not known: give half, int8 or jpeg, or leave it out");
}

// Takes the options of the class in Python one by one.
class Options {
 public:
  explicit Options(const py::dict& given) : given_(given) {}

  infer::SessionOptions taken() const {
    refuse_unknown();
    infer::SessionOptions made;
    made.policy = get<std::string>("policy", made.policy);
    made.seed = get<std::uint64_t>("seed", made.seed);
    made.chunks = get<int>("chunks", made.chunks);
    made.hedge = infer::hedge_of(get<std::string>("hedge", "deadline"));
    if (has("deadline")) made.deadline = seconds("deadline", 0);
    made.patience = seconds("patience", made.patience.count());
    made.profile_time = checked_seconds("profile_seconds", get<double>("profile_seconds", made.profile_time.count()));
    if (has("lossy")) made.lossy = codec_of(get<std::string>("lossy", ""));
    if (has("engine_tolerance")) made.engine.tolerance = tolerance();
    made.engine.start_limit = seconds("engine_start_limit", made.engine.start_limit.count());
    made.power.compute_watts = get<double>("compute_watts", made.power.compute_watts);
    made.power.idle_watts = get<double>("idle_watts", made.power.idle_watts);
    made.power.radio_watts = get<double>("radio_watts", made.power.radio_watts);
    if (has("server")) made.server = client();
    return made;
  }

 private:
  void refuse_unknown() const {
    constexpr std::array kKnown{"policy",
                                "seed",
                                "chunks",
                                "hedge",
                                "deadline",
                                "patience",
                                "profile_seconds",
                                "lossy",
                                "compute_watts",
                                "idle_watts",
                                "radio_watts",
                                "server",
                                "name",
                                "key_file",
                                "silence",
                                "probe_bytes",
                                "engine_tolerance",
                                "engine_start_limit"};
    for (const auto& [key, value] : given_) {
      const auto name = key.cast<std::string>();
      if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
        std::string names;
        for (const char* each : kKnown) names += (names.empty() ? "" : ", ") + std::string(each);
        throw Error(ErrorKind::kInvalidArgument, "a session has no setting \"" + name + "\": it has " + names);
      }
    }
  }
  Seconds seconds(const char* name, double fallback) const {
    constexpr double kMost = 1e9;
    const double value = get<double>(name, fallback);
    if (value > 0 && value <= kMost) return Seconds(value);
    throw Error(ErrorKind::kInvalidArgument,
                std::string(name) + " is " + std::to_string(value) + ": give seconds above 0 and at most 1e9");
  }
  double tolerance() const {
    const double value = get<double>("engine_tolerance", 0);
    if (value >= 0 && value <= 1) return value;
    throw Error(ErrorKind::kInvalidArgument, "engine_tolerance is " + std::to_string(value) +
                                                 ": give a share of the largest magnitude, from 0 to 1");
  }
  bool has(const char* name) const { return given_.contains(name) && !given_[name].is_none(); }
  template <typename Value>
  Value get(const char* name, Value fallback) const {
    if (!has(name)) return fallback;
    const py::object value = given_[name];
    try {
      return value.cast<Value>();
    } catch (const py::cast_error&) {
      constexpr const char* kWanted = std::is_same_v<Value, std::string> ? "a text"
                                      : std::is_floating_point_v<Value>  ? "a number"
                                      : std::is_unsigned_v<Value>        ? "a whole number of at least 0"
                                                                         : "a whole number";
      throw Error(ErrorKind::kInvalidArgument,
                  std::string(name) + " is " + py::repr(value).cast<std::string>() + ": give " + kWanted);
    }
  }

  infer::ClientOptions client() const {
    infer::ClientOptions made;
    made.server = get<std::string>("server", "");
    made.name = get<std::string>("name", "");
    made.credentials = transport::Credentials::of_key_file(get<std::string>("key_file", ""));
    made.silence = milliseconds(seconds("silence", 2).count());
    made.probe_bytes = get<std::size_t>("probe_bytes", made.probe_bytes);
    return made;
  }

  const py::dict& given_;
};

// {"operators": names, "plan": as write_operator_plan}: who computes what, and when, at these rates.
std::string picture_of(const infer::Outcome& outcome, const infer::SessionReport& report) {
  plan::LinkCost link;
  link.up_bytes_per_second = std::max(1.0, report.up_rate);
  link.down_bytes_per_second = std::max(1.0, report.down_rate);
  link.latency = std::max(0.0, report.latency);
  const plan::OperatorPlan& division = *outcome.division;
  const plan::Timeline timeline =
      plan::simulate(*outcome.divided, link, plan::RobotPower{}, division.shares, division.chunks);
  plan::Json names = plan::Json::array();
  for (const plan::Operator& each : outcome.divided->operators) names.push_back(each.name);
  return plan::Json{{"operators", names}, {"plan", plan::write_operator_plan(division, timeline, true)}}.dump();
}

class InferSession {
 public:
  InferSession(const infer::SessionOptions& options, infer::Bundle bundle,
               const std::map<std::string, at::Tensor>& weights, const std::string& device,
               std::shared_ptr<infer::LocalEngine> engine) {
    for (const auto& [name, tensor] : weights) bundle.weights[name] = bytes_of(tensor);
    session_ =
        std::make_shared<infer::Session>(options, std::move(bundle), make_operator_runner(device), std::move(engine));
  }
  ~InferSession() {
    const ReleaseGil released;
    close();
  }
  InferSession(const InferSession&) = delete;
  InferSession& operator=(const InferSession&) = delete;

  struct Result {
    infer::Outcome outcome;
    std::string picture;  // of its division, where that is another than before
    std::vector<at::Tensor> outputs;
  };

  /// `waited`: seconds since it was asked for.
  Result run(const std::vector<at::Tensor>& inputs, std::optional<double> deadline, double waited, bool wants_picture) {
    constexpr double kMost = 1e9;
    const Seconds before(waited > 0 ? std::min(waited, kMost) : 0);
    const Clock::time_point since = Clock::now() - std::chrono::duration_cast<Clock::duration>(before);
    const std::shared_ptr<infer::Session> opened = open();
    infer::Session& session = *opened;
    std::vector<infer::HostBytes> bytes;
    for (const at::Tensor& input : inputs) bytes.push_back(bytes_of(input));
    Result result;
    result.outcome = session.run(bytes, deadline ? std::optional(Seconds(*deadline)) : std::nullopt, since);
    std::size_t next = 0;
    for (const infer::Argument& output : session.graph().outputs) {
      const auto* tensor = std::get_if<infer::TensorId>(&output);
      if (tensor == nullptr) continue;
      const infer::Tensor& type = session.graph().tensors[static_cast<std::size_t>(tensor->id)];
      // Outputs may share memory with inputs, weights and one another; the caller may change what it gets.
      at::Tensor made = at::empty(type.shape, at::dtype(scalar_type_of(type.dtype)));
      const auto& from = result.outcome.outputs.at(next++).bytes;
      if (!from.empty()) std::memcpy(made.mutable_data_ptr(), from.data(), from.size());
      result.outputs.push_back(std::move(made));
    }
    result.outcome.values.clear();
    result.outcome.outputs.clear();
    const plan::OperatorPlan* division = result.outcome.division.get();
    if (wants_picture && division != nullptr && told_.exchange(division) != division) {
      result.picture = picture_of(result.outcome, session.report());
    }
    return result;
  }

  /// Who has it may go on with it, though it be closed meanwhile: it says so then.
  std::shared_ptr<infer::Session> open() {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!is_inherited()) lock.lock();  // in a forked child somebody may hold it for ever
    if (!session_) throw Error(ErrorKind::kInvalidArgument, "the session is closed: make another one");
    return session_;
  }
  void close() {
    if (is_inherited()) return;
    std::shared_ptr<infer::Session> last;
    {
      const std::lock_guard lock(mutex_);
      last = std::move(session_);
    }
    if (last) last->close();
  }

 private:
  bool is_inherited() const noexcept { return fork_depth() != process_; }

  const std::uint32_t process_ = fork_depth();
  std::mutex mutex_;
  std::shared_ptr<infer::Session> session_;
  std::atomic<const plan::OperatorPlan*> told_{nullptr};  // to compare with, nothing more
};

py::dict dict_of(const infer::Outcome& outcome) {
  py::dict made;
  made["origin"] = infer::to_string(outcome.origin);
  made["plan"] = outcome.plan;
  made["seconds"] = outcome.seconds;
  made["predicted"] = outcome.predicted;
  made["bound"] = outcome.bound;
  made["up_bytes"] = outcome.up_bytes;
  made["down_bytes"] = outcome.down_bytes;
  made["joules"] = outcome.joules;
  made["guard_used"] = outcome.guard_used;
  made["missed"] = outcome.missed;
  made["computing"] = outcome.times.computing;
  made["waiting"] = outcome.times.waiting;
  made["sending"] = outcome.times.sending;
  made["receiving"] = outcome.times.receiving;
  return made;
}

std::unique_ptr<InferSession> make_session(const py::dict& given, const std::string& folder,
                                           const std::map<std::string, at::Tensor>& weights, const std::string& device,
                                           const py::object& engine, const std::vector<at::Tensor>& example) {
  return translated([&] {
    infer::SessionOptions options = Options(given).taken();
    const bool is_package = py::isinstance<py::str>(engine);
    const std::string package = is_package ? engine.cast<std::string>() : std::string();
    std::shared_ptr<infer::LocalEngine> own;
    if (!is_package && !engine.is_none()) {
      own = make_callable_engine(py::reinterpret_borrow<py::function>(engine), device);
    }
    const py::gil_scoped_release released;
    if (is_package) own = load_package_engine(package, device);
    for (const at::Tensor& each : example) options.engine.example.push_back(bytes_of(each));
    return std::make_unique<InferSession>(options, infer::load_bundle(folder), weights, device, std::move(own));
  });
}

}  // namespace

void bind_session(py::module_& module) {
  using Released = py::call_guard<ReleaseGil>;
  py::class_<InferSession>(module, "InferSession")
      .def(py::init(&make_session), py::arg("options"), py::arg("bundle"), py::arg("weights"),
           py::arg("device") = "cpu", py::arg("engine") = py::none(), py::arg("example") = std::vector<at::Tensor>())
      .def(
          "run",
          [](InferSession& session, const std::vector<at::Tensor>& inputs, std::optional<double> deadline,
             double waited, bool wants_picture) {
            InferSession::Result result;
            {
              const ReleaseGil released;
              result = translated([&] { return session.run(inputs, deadline, waited, wants_picture); });
            }
            py::dict facts = dict_of(result.outcome);
            facts["picture"] = result.picture;
            return std::pair(std::move(result.outputs), facts);
          },
          py::arg("inputs"), py::arg("deadline") = std::nullopt, py::arg("waited") = 0.0,
          py::arg("wants_picture") = false)
      .def(
          "report_json",
          [](InferSession& session) { return translated([&] { return session.open()->report().json(); }); }, Released())
      .def(
          "wait_until_ready",
          [](InferSession& session, double seconds) {
            return translated(
                [&] { return session.open()->wait_until_ready(Deadline::after(checked_seconds("seconds", seconds))); });
          },
          py::arg("seconds"), Released())
      .def("close", &InferSession::close, Released());
}

}  // namespace atl::pytorch
