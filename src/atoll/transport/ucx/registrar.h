// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/context.h"

namespace atl::transport::ucx {

/// Registers a link's rings with the network devices, each at its first use. Once a ring is refused, for example by the
/// limit of locked memory, no further one is tried: UCX gets their bytes without a registration and stages them in
/// memory of its own. On the loop.
class Registrar {
 public:
  /// Throws Error(kUnavailable) when the system refuses.
  using Make = std::function<std::unique_ptr<Registration>(std::span<std::byte> memory)>;

  /// `tell` is called once, with the first refusal.
  Registrar(Make make, std::function<void(const Error& refusal)> tell)
      : make_(std::move(make)), tell_(std::move(tell)) {}

  /// Returns the registration of `memory`, made and kept in `known` if that is empty; nullptr after a refusal. Throws
  /// what `make` throws except kUnavailable.
  const Registration* get(std::unique_ptr<Registration>& known, std::span<std::byte> memory) {
    if (known != nullptr || is_refused_) return known.get();
    try {
      known = make_(memory);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnavailable) throw;
      is_refused_ = true;
      tell_(error);
    }
    return known.get();
  }

 private:
  const Make make_;
  const std::function<void(const Error& refusal)> tell_;
  bool is_refused_ = false;
};

}  // namespace atl::transport::ucx
