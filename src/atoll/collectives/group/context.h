// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/transport/endpoint.h"

namespace atl::collectives {

/// The state that the groups of one rank share: the endpoint with its links, and the routing of control messages to
/// groups.
class Context {
 public:
  explicit Context(transport::EndpointOptions options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  transport::Endpoint& endpoint() noexcept;

  /// Endpoint options from the ATOLL_* environment; throws Error(kInvalidArgument) naming the variable and its value.
  static transport::EndpointOptions options_from_environment();

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::collectives
