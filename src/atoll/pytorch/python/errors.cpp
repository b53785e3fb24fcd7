// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/errors.h"

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/inner/plain_text.h"

namespace atl::pytorch {

void throw_as_torch(const Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument: throw c10::ValueError(here, error.what());
    case ErrorKind::kPeerLost:
    case ErrorKind::kRefused:
    case ErrorKind::kProtocol: throw c10::DistNetworkError(here, error.what());
    case ErrorKind::kStore: throw c10::DistStoreError(here, error.what());
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kAborted:
    case ErrorKind::kUnavailable:
    case ErrorKind::kInternal: break;
  }
  throw c10::DistBackendError(here, error.what());
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return plain_text(known);
  } catch (...) {
    return "an unknown error";
  }
}

std::exception_ptr as_torch(const std::exception_ptr& error) noexcept {
  if (!error) return nullptr;
  try {
    translated([&] { std::rethrow_exception(error); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace atl::pytorch
