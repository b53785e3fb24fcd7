// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace atl {

/// The number of forks between the process that first used Atoll and this one. An object that stores the value at its
/// creation can tell whether it was inherited: then its descriptors, threads and shared mappings do not exist here. Any
/// thread.
std::uint32_t fork_depth() noexcept;

/// Owns one file descriptor. A process forked by this one closes every descriptor held here as it starts, so that it
/// neither keeps connections alive nor disturbs them; objects it inherited hold nothing afterwards.
class Fd {
 public:
  Fd() = default;

  /// Takes ownership of `fd` (negative: none). Throws Error(kUnavailable), with `fd` closed, above a million
  /// descriptors.
  explicit Fd(int fd);
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), process_(other.process_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      process_ = other.process_;
    }
    return *this;
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

  /// Gives up ownership; the caller closes the descriptor.
  int release() noexcept;

 private:
  int fd_ = -1;
  std::uint32_t process_ = 0;  // fork_depth() of the process that owns it
};

/// Writes all of `bytes`. Returns 0, or the error number.
int write_all(const Fd& file, std::span<const std::byte> bytes) noexcept;

/// Creates a file that only this user may read, replacing any file of that name. Follows no links, so that in a shared
/// folder no other user can redirect the text. Throws Error(kUnavailable).
void write_private_file(const std::string& path, std::string_view text);

}  // namespace atl
