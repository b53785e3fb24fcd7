// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "atoll/core/error.h"

namespace atl::pytorch {

/// Returns the first line of a message of PyTorch's; later lines are for its developers.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')).substr(0, 400); }

/// Runs `body` and rethrows PyTorch's errors as Atoll's, with `name` in front and `advice` at the end: kUnavailable if
/// memory is lacking, else kInvalidArgument. Exceptions that are neither PyTorch's nor the standard library's pass
/// unchanged: an operator written in Python may be interrupted there.
template <typename Body>
decltype(auto) named(const std::string& name, Body&& body, const std::string& advice = {}) {
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
    throw Error(is_memory ? ErrorKind::kUnavailable : ErrorKind::kInvalidArgument,
                name + ": " + first_line(text) + (is_memory ? "" : advice));
  } catch (const std::runtime_error& error) {
    throw Error(ErrorKind::kInvalidArgument, name + ": " + first_line(error.what()) + advice);
  } catch (const std::logic_error& error) {
    throw Error(ErrorKind::kInvalidArgument, name + ": " + first_line(error.what()) + advice);
  }
}

}  // namespace atl::pytorch
