// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/session_arguments.h"

#include <cxxabi.h>

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/wire/codecs.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/named.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/process/interrupts.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::pytorch {
namespace {

namespace wire = infer::wire;
using Seconds = std::chrono::duration<double>;

wire::Codec codec_of(const std::string& name) {
  for (const wire::Codec codec : {wire::Codec::kHalf, wire::Codec::kInt8, wire::Codec::kJpeg}) {
    if (name == wire::to_string(codec)) return codec;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "lossy \"" + name + "\" is not known: give half, int8 or jpeg, or leave it out");
}

// Reads the options of the class in Python one by one.
class GivenOptions {
 public:
  explicit GivenOptions(const py::dict& given) : given_(given) {}

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
    made.check = check_signals;
    made.logs_refusals = false;  // the class in Python warns
    return made;
  }

 private:
  void refuse_unknown() const {
    constexpr const char* kKnown =
        "policy, seed, chunks, hedge, deadline, patience, profile_seconds, lossy, compute_watts, idle_watts, "
        "radio_watts, server, name, key_file, silence, probe_bytes, engine_tolerance, engine_start_limit";
    const py::object known = py::str(kKnown).attr("split")(", ");
    for (const auto& [key, value] : given_) {
      if (known.contains(key)) continue;
      throw Error(ErrorKind::kInvalidArgument,
                  "a session has no setting \"" + key.cast<std::string>() + "\": it has " + kKnown);
    }
  }
  Seconds seconds(const char* name, double fallback) const {
    constexpr double kMax = 1e9;
    const double value = get<double>(name, fallback);
    if (value > 0 && value <= kMax) return Seconds(value);
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
    made.silence = milliseconds_of(seconds("silence", 2).count());
    made.probe_bytes = get<std::size_t>("probe_bytes", made.probe_bytes);
    return made;
  }

  const py::dict& given_;
};

// Returns the message without Python's stack trace, which pybind11 appends.
std::string text_without_stack(const py::error_already_set& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\n\nAt:"));
}

// Has no object that would need to be destroyed when the thread is unwound.
PyObject* call(PyObject* function, PyObject* argument) {
  try {
    return PyObject_CallOneArg(function, argument);
  } catch (const abi::__forced_unwind&) {
    stay();
  }
}

class CallableEngine final : public infer::LocalEngine {
 public:
  CallableEngine(py::function function, c10::Device device) : function_(std::move(function)), device_(device) {}

  ~CallableEngine() override {
    if (Py_IsInitialized() == 0) {
      function_.release();  // the interpreter is gone, so the reference is leaked
      return;
    }
    try {
      const py::gil_scoped_acquire held;
      function_ = py::function();
    } catch (const abi::__forced_unwind&) {
      stay();
    }
  }

  std::vector<infer::Value> run(std::span<const infer::Value> inputs) override {
    return named("the engine", [&] {
      std::vector<at::Tensor> given;
      for (const infer::Value& input : inputs) given.push_back(tensor_of(input).clone());
      std::vector<infer::Value> made;
      for (const at::Tensor& output : called(given)) {
        made.push_back(value_of(output.detach().to(device_, output.scalar_type(), false, true).contiguous()));
      }
      wait_for(device_);
      return made;
    });
  }

 private:
  std::vector<at::Tensor> called(const std::vector<at::Tensor>& inputs) {
    try {
      const py::gil_scoped_acquire held;
      return called_with_gil(inputs);
    } catch (const abi::__forced_unwind&) {
      stay();
    }
  }
  std::vector<at::Tensor> called_with_gil(const std::vector<at::Tensor>& inputs) {
    try {
      const py::object given = py::cast(inputs);
      const auto made = py::reinterpret_steal<py::object>(call(function_.ptr(), given.ptr()));
      if (!made) throw py::error_already_set();
      return made.cast<std::vector<at::Tensor>>();
    } catch (const py::error_already_set& error) {
      throw Error(ErrorKind::kInvalidArgument, text_without_stack(error));
    } catch (const py::cast_error&) {
      throw Error(ErrorKind::kInvalidArgument, "it must return a list of tensors");
    }
  }

  py::function function_;
  const c10::Device device_;
};

}  // namespace

infer::SessionOptions session_options(const py::dict& given) { return GivenOptions(given).taken(); }

std::shared_ptr<infer::LocalEngine> make_callable_engine(py::function function, const std::string& device) {
  return named("the engine", [&] {
    const c10::Device place(device);
    return std::shared_ptr<infer::LocalEngine>(std::make_shared<CallableEngine>(std::move(function), place));
  });
}

}  // namespace atl::pytorch
