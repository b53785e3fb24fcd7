// SPDX-License-Identifier: Apache-2.0
#include <Python.h>

#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

ReleaseGil::ReleaseGil() {
  if (Py_IsInitialized() && PyGILState_Check()) saved_ = PyEval_SaveThread();
}

ReleaseGil::~ReleaseGil() {
  if (saved_) PyEval_RestoreThread(saved_);
}

}  // namespace atl::pytorch
