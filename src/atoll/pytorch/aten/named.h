// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "atoll/core/error.h"

namespace atl::pytorch {

/// Runs `body` and lets errors of PyTorch leave as ours, with the name before: kUnavailable where memory is lacking, else
/// kInvalidArgument.
template <typename Body>
decltype(auto) named(const std::string& name, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorKind::kUnavailable, name + ": " + error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kUnavailable, name + ": there is not enough memory");
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool is_memory = text.find("can't allocate memory") != std::string::npos;  // of the host's allocator
    throw Error(is_memory ? ErrorKind::kUnavailable : ErrorKind::kInvalidArgument, name + ": " + text);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kInvalidArgument, name + ": " + error.what());
  }
}

}  // namespace atl::pytorch
