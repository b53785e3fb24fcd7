// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/direct.h"

namespace atl::transport::ucx {

/// UCX in this process: the library, opened at run time, and the devices that it found on this machine. Any thread.
class Context {
 public:
  /// Throws Error(kUnavailable) naming what is missing and how to install it.
  static std::shared_ptr<Context> open();
  ~Context();

  /// Returns whether a network device here moves bytes without the processor.
  bool has_rdma() const noexcept;

  /// Returns whether it supports memory of that kind.
  bool knows(MemoryKind kind) const noexcept;

  /// Returns "UCX 1.13.1", for messages.
  const std::string& version() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Memory that devices may read and write directly as long as this object exists: pinned, and registered with them. On
/// the loop of the link that uses it. In a forked child the destructor does nothing.
class Registration {
 public:
  /// Throws Error(kUnavailable).
  Registration(std::shared_ptr<Context> context, void* data, std::size_t bytes, MemoryKind kind);
  ~Registration();

  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

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
