// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/infer/bundle/weight_file.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/session/session.h"
#include "atoll/infer/session/session_checks.h"
#include "atoll/json/parse.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/operator_runner.h"
#include "atoll/pytorch/aten/package_engine.h"
#include "atoll/pytorch/aten/plain_state.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/bindings/session_arguments.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/host_bytes.h"
#include "atoll/pytorch/python/process/interrupts.h"
#include "atoll/pytorch/python/seconds.h"

namespace atl::pytorch {
namespace {

using Seconds = std::chrono::duration<double>;

// {"operators": names, "plan": as from write_operator_plan}: which side computes what, and when, at these rates.
std::string picture_of(const infer::Outcome& outcome, const infer::SessionReport& report) {
  plan::LinkCost link;
  link.up_bytes_per_second = std::max(1.0, report.up_rate);
  link.down_bytes_per_second = std::max(1.0, report.down_rate);
  link.latency = std::max(0.0, report.latency);
  const plan::OperatorPlan& division = *outcome.division;
  const plan::Timeline timeline =
      plan::simulate(*outcome.divided, link, plan::RobotPower{}, division.shares, division.chunks);
  json::Json names = json::Json::array();
  for (const plan::Operator& each : outcome.divided->operators) names.push_back(each.name);
  return json::Json{{"operators", names}, {"plan", plan::write_operator_plan(division, timeline, true)}}.dump();
}

// A call of a session on the current thread, on which Python runs signal handlers in the middle of it.
class CallOfThread {
 public:
  explicit CallOfThread(const void* session) : session_(session), outer_(std::exchange(innermost, this)) {}
  ~CallOfThread() { innermost = outer_; }
  CallOfThread(const CallOfThread&) = delete;
  CallOfThread& operator=(const CallOfThread&) = delete;
  static bool is_inside(const void* session) {
    const CallOfThread* call = innermost;
    while (call != nullptr && call->session_ != session) call = call->outer_;
    return call != nullptr;
  }

 private:
  inline static thread_local const CallOfThread* innermost = nullptr;
  const void* const session_;
  const CallOfThread* const outer_;
};

class InferSession {
 public:
  InferSession(const infer::SessionOptions& options, infer::Bundle bundle,
               const std::shared_ptr<infer::OperatorRunner>& runner, std::shared_ptr<infer::LocalEngine> engine)
      : device_(runner->device()),
        session_(std::make_shared<infer::Session>(options, std::move(bundle), runner, std::move(engine))) {}
  ~InferSession() {
    const ReleaseGil released;
    if (const std::shared_ptr<infer::Session> last = taken()) last->close();
  }
  InferSession(const InferSession&) = delete;
  InferSession& operator=(const InferSession&) = delete;

  struct Result {
    infer::Outcome outcome;
    std::string picture;  // of its division, if that has changed
    std::vector<at::Tensor> outputs;
  };

  /// `waited`: seconds since the caller requested it.
  Result run(const std::vector<at::Tensor>& inputs, std::optional<double> deadline, double waited, bool wants_picture) {
    if (CallOfThread::is_inside(this)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "this thread is inside another call of the session, which a signal handler has interrupted: call the "
                  "session when that call is over");
    }
    const CallOfThread inside(this);
    constexpr double kMax = 1e9;
    const Seconds before(waited > 0 ? std::min(waited, kMax) : 0);
    const Clock::time_point since = Clock::now() - std::chrono::duration_cast<Clock::duration>(before);
    const std::shared_ptr<infer::Session> opened = open();
    infer::Session& session = *opened;
    const PlainState state(
        c10::InferenceMode::is_enabled());  // outputs are inference tensors if the caller's own would be
    const auto limit = deadline ? std::optional(Seconds(*deadline)) : std::nullopt;
    Result result;
    if (device_.is_cpu()) {
      std::vector<infer::HostBytes> bytes;
      for (const at::Tensor& input : inputs) bytes.push_back(host_bytes_of(input));
      result.outcome = session.run(bytes, limit, since);
    } else {
      std::vector<infer::Value> values;
      for (const at::Tensor& input : inputs) values.push_back(value_of(on_device(input)));
      wait_for(device_);  // for the work that makes them: threads of the session have other streams
      result.outcome = session.run_values(values, limit, since);
    }
    result.outputs = outputs_of(session.graph(), result.outcome);
    result.outcome.values.clear();
    result.outcome.outputs.clear();
    const plan::OperatorPlan* division = result.outcome.division.get();
    if (wants_picture && division != nullptr && told_.exchange(division) != division) {
      result.picture = picture_of(result.outcome, session.report());
    }
    return result;
  }

  /// A caller may keep using the session while another closes it; its calls then throw.
  std::shared_ptr<infer::Session> open() {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!is_inherited()) lock.lock();  // in a forked child it may be locked forever
    if (!session_) throw Error(ErrorKind::kInvalidArgument, "the session is closed: make another one");
    return session_;
  }
  /// Closing continues in the background if a signal interrupts the caller, and if a signal handler calls this inside a
  /// call, which cannot end before the handler returns.
  void close() {
    const std::shared_ptr<infer::Session> last = taken();
    if (!last) return;
    if (CallOfThread::is_inside(this)) return std::thread([last] { last->close(); }).detach();
    interruptible([last] { last->close(); });
  }
  /// Closes the session because Python is exiting; calls of other threads then wait outside the interpreter.
  void leave() {
    leaver_ = std::this_thread::get_id();
    is_left_ = true;
    if (const std::shared_ptr<infer::Session> last = taken()) last->close();
    // A thread between two calls may be in PyTorch, where it must not be when Python exits; give it time to reach the
    // next one.
    if (has_other_threads_) std::this_thread::sleep_for(kNextCall);
  }

  /// Called before a thread prepares a call. Throws Error(kInvalidArgument) if the session is closed.
  void expect_open() {
    if (std::this_thread::get_id() != maker_) has_other_threads_ = true;
    open();
  }

  /// Runs `body` with the GIL released.
  template <typename Body>
  auto outside(Body&& body) {
    const ReleaseGil released;
    try {
      return body();
    } catch (...) {
      // Python does not wait for this thread, and would print its error at the end of every program.
      if (is_left_ && std::this_thread::get_id() != leaver_) std::this_thread::sleep_for(kEndOfPython);
      throw;
    }
  }

 private:
  static constexpr std::chrono::seconds kEndOfPython{1};
  static constexpr std::chrono::milliseconds kNextCall{20};
  bool is_inherited() const noexcept { return fork_depth() != process_; }
  // Takes the session; null if it was taken before, or belongs to the parent of a forked process.
  std::shared_ptr<infer::Session> taken() {
    if (is_inherited()) return nullptr;
    const std::lock_guard lock(mutex_);
    return std::move(session_);
  }

  // Resolves conjugation and negation, which are bits of the tensor and not in its memory.
  at::Tensor on_device(const at::Tensor& tensor) const {
    return tensor.resolve_conj().resolve_neg().to(device_).contiguous();
  }

  // Outputs may share memory with inputs, weights and one another; the caller may change what it gets.
  std::vector<at::Tensor> outputs_of(const infer::Graph& graph, const infer::Outcome& outcome) const {
    std::vector<at::Tensor> outputs;
    for (const infer::Argument& output : graph.outputs) {
      const auto* tensor = std::get_if<infer::TensorId>(&output);
      if (tensor == nullptr) continue;
      if (!device_.is_cpu()) {
        outputs.push_back(tensor_of(outcome.values.at(outputs.size())).clone(at::MemoryFormat::Contiguous));
        continue;
      }
      const infer::Tensor& type = graph.tensors[static_cast<std::size_t>(tensor->id)];
      at::Tensor made = at::empty(type.shape, at::dtype(scalar_type_of(type.dtype)));
      const auto& from = outcome.outputs.at(outputs.size()).bytes;
      if (!from.empty()) std::memcpy(made.mutable_data_ptr(), from.data(), from.size());
      outputs.push_back(std::move(made));
    }
    return outputs;
  }

  const c10::Device device_;
  const std::uint32_t process_ = fork_depth();
  std::mutex mutex_;
  std::shared_ptr<infer::Session> session_;
  std::atomic<const plan::OperatorPlan*> told_{nullptr};  // for comparison only
  std::thread::id leaver_;                                // set before is_left_
  std::atomic<bool> is_left_{false};
  const std::thread::id maker_ = std::this_thread::get_id();
  std::atomic<bool> has_other_threads_{false};
};

py::dict dict_of(const infer::Outcome& outcome) {
  using namespace py::literals;  // NOLINT(google-build-using-namespace)
  return py::dict("origin"_a = infer::to_string(outcome.origin), "plan"_a = outcome.plan, "seconds"_a = outcome.seconds,
                  "predicted"_a = outcome.predicted, "bound"_a = outcome.bound, "up_bytes"_a = outcome.up_bytes,
                  "down_bytes"_a = outcome.down_bytes, "joules"_a = outcome.joules, "guard_used"_a = outcome.guard_used,
                  "missed"_a = outcome.missed, "computing"_a = outcome.times.computing,
                  "waiting"_a = outcome.times.waiting, "sending"_a = outcome.times.sending,
                  "receiving"_a = outcome.times.receiving);
}

// Makes a bundle of a graph's text and the descriptor of a weight file, which have this hash.
infer::Bundle bundle_of(std::string graph, int weights, const std::string& hash) {
  infer::Bundle bundle;
  if (hash.size() != bundle.hash.size()) throw Error(ErrorKind::kInternal, "a model's hash must have 32 bytes");
  std::memcpy(bundle.hash.data(), hash.data(), hash.size());
  bundle.graph = infer::graph_from_json(graph);
  bundle.graph_text = std::move(graph);
  const infer::WeightFile file(weights);
  bundle.weight_file = file.bytes();
  bundle.weights = file.tensors();
  return bundle;
}

std::unique_ptr<InferSession> make_session(const py::dict& given, const py::bytes& graph, int weights,
                                           const py::bytes& hash, const std::string& device, const py::object& engine,
                                           const std::vector<at::Tensor>& example) {
  logging::install_spdlog_sink();
  infer::SessionOptions options = session_options(given);
  const bool is_package = py::isinstance<py::str>(engine);
  const std::string package = is_package ? engine.cast<std::string>() : std::string();
  std::string text = graph;
  const std::string digest = hash;
  std::shared_ptr<infer::LocalEngine> own;
  if (!is_package && !engine.is_none()) {
    own = make_callable_engine(py::reinterpret_borrow<py::function>(engine), device);
  }
  const ReleaseGil released;
  const PlainState state;
  if (is_package) own = load_package_engine(package, device);
  for (const at::Tensor& each : example) options.engine.example.push_back(host_bytes_of(each));
  return std::make_unique<InferSession>(options, bundle_of(std::move(text), weights, digest),
                                        make_operator_runner(device), std::move(own));
}

// Checks what can be checked without the model.
void check_session(const py::dict& given, const std::string& device) {
  infer::check_options(session_options(given));
  make_operator_runner(device);
}

}  // namespace

void bind_session(py::module_& module) {
  using Released = py::call_guard<ReleaseGil>;
  py::class_<InferSession>(module, "InferSession")
      .def(py::init(&make_session), py::arg("options"), py::arg("graph"), py::arg("weights"), py::arg("hash"),
           py::arg("device") = "cpu", py::arg("engine") = py::none(), py::arg("example") = std::vector<at::Tensor>())
      .def(
          "run",
          [](InferSession& session, const std::vector<at::Tensor>& inputs, std::optional<double> deadline,
             double waited, bool wants_picture) {
            InferSession::Result result =
                session.outside([&] { return session.run(inputs, deadline, waited, wants_picture); });
            py::dict facts = dict_of(result.outcome);
            facts["picture"] = result.picture;
            facts["refusal"] = result.outcome.refusal;
            return std::pair(std::move(result.outputs), facts);
          },
          py::arg("inputs"), py::arg("deadline") = std::nullopt, py::arg("waited") = 0.0,
          py::arg("wants_picture") = false)
      .def("expect_open", [](InferSession& session) { session.outside([&] { session.expect_open(); }); })
      .def("report_json",
           [](InferSession& session) { return session.outside([&] { return session.open()->report().json(); }); })
      .def(
          "wait_until_ready",
          [](InferSession& session, double seconds) {
            return session.outside(
                [&] { return session.open()->wait_until_ready(Deadline::after(checked_seconds("seconds", seconds))); });
          },
          py::arg("seconds"))
      .def("close", &InferSession::close, Released())
      .def("leave", &InferSession::leave, Released());
  module.def("check_infer_session", &check_session, py::arg("options"), py::arg("device") = "cpu");
}

}  // namespace atl::pytorch
