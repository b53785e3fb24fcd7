// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "atoll/core/error.h"

// Messages that go from one memory straight into another, beside the channels of a link: no ring, no copy by the
// processor where the path needs none. Only links that can do so offer them (Link::direct).
namespace atl::transport {

/// What kind of memory an address leads to. The processor may touch kHost only.
enum class MemoryKind : std::uint8_t { kHost, kCuda, kRocm };
const char* to_string(MemoryKind kind) noexcept;

struct DirectBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
};

/// Both ends name a message by the same number; messages with equal numbers pair in the order of the calls. A message has
/// the size of its receive: another one is kMismatch at the receiver. All functions are thread-safe.
class DirectPort {
 public:
  virtual ~DirectPort() = default;

  /// Whether buffers of this kind may be given to this end.
  virtual bool reaches(MemoryKind kind) const noexcept = 0;

  /// Called once, on the loop thread, and must not block: nullptr when all is done and the buffer may be used again, else
  /// why not: the link's error, kMismatch, or kAborted.
  using Done = std::function<void(const Error* problem)>;

  /// The buffer stays as it is, and a device is done with it, until `done`. When the link ends, every `done` is called. An end
  /// in good order waits for channels alone: whoever ends a link lets both ends' messages come to their `done` first.
  /// Throws Error(kInvalidArgument) for memory that reaches() denies.
  virtual void send(std::uint64_t number, const DirectBuffer& from, Done done) = 0;
  virtual void receive(std::uint64_t number, const DirectBuffer& to, Done done) = 0;

  /// Makes memory known to the devices of the path, so that no message from or to it pays for that; undone by forget,
  /// for which nothing may be under way there, or by the end of the link. Throws Error(kUnavailable).
  virtual void remember(const DirectBuffer& memory) = 0;
  virtual void forget(const DirectBuffer& memory) = 0;
};

}  // namespace atl::transport
