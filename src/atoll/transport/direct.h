// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "atoll/core/error.h"

// Messages that travel from one memory straight into another, beside the channels of a link: without a ring, and
// without a copy by the processor when the path needs none. Only links that support them offer them (Link::direct).
namespace atl::transport {

/// The kind of memory at an address. The processor may access kHost only.
enum class MemoryKind : std::uint8_t { kHost, kCuda, kRocm };
inline const char* to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost: return "host";
    case MemoryKind::kCuda: return "cuda";
    case MemoryKind::kRocm: return "rocm";
  }
  return "unknown";
}

struct DirectBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
};

/// Both ends name a message by the same number; messages with equal numbers pair in the order of the calls. A message
/// must have the size of its receive: otherwise the receiver gets kMismatch. All functions are thread-safe.
class DirectPort {
 public:
  virtual ~DirectPort() = default;

  /// Returns whether this end accepts buffers of this kind.
  virtual bool reaches(MemoryKind kind) const noexcept = 0;

  /// Called once, on the loop thread, and must not block. `problem` is nullptr when the transfer is complete and the
  /// buffer may be used again, else the link's error, kMismatch, or kAborted.
  using Done = std::function<void(const Error* problem)>;

  /// The buffer must not be accessed until `done`, and no device may still be working on it. When the link ends, every
  /// `done` is called. A shutdown in good order waits for channels alone: complete the messages of both ends before it.
  /// Throws Error(kInvalidArgument) for memory that reaches() denies.
  virtual void send(std::uint64_t number, const DirectBuffer& from, Done done) = 0;
  virtual void receive(std::uint64_t number, const DirectBuffer& to, Done done) = 0;

  /// Registers memory with the devices of the path, so that no message pays for that. Undone by forget(), when no
  /// transfer may be under way there, or by the end of the link. Throws Error(kUnavailable).
  virtual void remember(const DirectBuffer& memory) = 0;
  virtual void forget(const DirectBuffer& memory) = 0;
};

}  // namespace atl::transport
