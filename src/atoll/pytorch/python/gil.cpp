// SPDX-License-Identifier: Apache-2.0
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

ReleaseGil::ReleaseGil() {
  if (Py_IsInitialized() && PyGILState_Check()) saved_ = PyEval_SaveThread();
}

ReleaseGil::~ReleaseGil() {
  if (saved_ == nullptr) return;
  try {
    PyEval_RestoreThread(saved_);
  } catch (const abi::__forced_unwind&) {
    stay();
  }
}

void stay() {
  for (;;) ::pause();
}

}  // namespace atl::pytorch
