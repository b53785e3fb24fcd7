// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>

#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/pytorch/aten/aten_tensor.h"
#include "atoll/pytorch/aten/named.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/bindings/session_arguments.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {
namespace {

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

std::shared_ptr<infer::LocalEngine> make_callable_engine(py::function function, const std::string& device) {
  return named("the engine", [&] {
    const c10::Device place(device);
    return std::shared_ptr<infer::LocalEngine>(std::make_shared<CallableEngine>(std::move(function), place));
  });
}

}  // namespace atl::pytorch
