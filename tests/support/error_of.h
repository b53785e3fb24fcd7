// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "atoll/core/error.h"

namespace atl::test {

/// Returns what `body` throws; fails the test if it throws nothing.
template <typename Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorKind::kInternal, ""};
}

}  // namespace atl::test
