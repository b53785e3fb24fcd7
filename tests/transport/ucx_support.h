// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/context.h"

namespace atl::test {

/// UCX with some of its transports alone, while this lives. Does nothing where `transports` is empty.
class UcxTransports {
 public:
  explicit UcxTransports(const std::string& transports) : is_set_(!transports.empty()) {
    if (!is_set_) return;
    ::setenv("UCX_TLS", transports.c_str(), 1);
    ::setenv("UCX_LOG_LEVEL", "fatal", 0);  // tests provoke what it complains about, on standard output
  }
  ~UcxTransports() {
    if (is_set_) ::unsetenv("UCX_TLS");
  }
  UcxTransports(const UcxTransports&) = delete;
  UcxTransports& operator=(const UcxTransports&) = delete;

 private:
  const bool is_set_;
};

inline constexpr const char* kUcxMemory = "posix,sysv,cma,self";
inline constexpr const char* kUcxNetwork = "tcp";

/// Why links through UCX cannot be tested here; empty if they can.
inline std::string ucx_is_absent() {
  try {
    transport::ucx::Context::open();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace atl::test
