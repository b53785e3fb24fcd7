// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/context.h"
#include "tests/support/peers.h"

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

/// Returns why links through UCX cannot be tested here; empty if they can.
inline std::string ucx_is_absent() {
  try {
    transport::ucx::Context::open();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Links through UCX alone, over shared memory and over a network (kUcxMemory, kUcxNetwork).
class UcxLinks : public ::testing::TestWithParam<const char*> {
 protected:
  UcxLinks() : ucx_(GetParam()) {}
  void SetUp() override {
    if (const std::string why = ucx_is_absent(); !why.empty()) GTEST_SKIP() << why;
  }

  /// "tcp": as between two hosts, where UCX has to notice a broken path by itself.
  static std::vector<transport::EndpointOptions> options(bool two_hosts = GetParam() == std::string(kUcxNetwork)) {
    std::vector both{peer_options(transport::TransportChoice::kUcx, 0),
                     peer_options(transport::TransportChoice::kUcx, 1)};
    if (two_hosts) {
      both[0].host = "one";
      both[1].host = "another";
    }
    return both;
  }

 private:
  const UcxTransports ucx_;
};

}  // namespace atl::test
