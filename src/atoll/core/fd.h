// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// Makes a system call again as long as signals interrupt it; returns its result.
template <class Call>
auto retried(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// The maximum number of descriptors in one message.
inline constexpr std::size_t kMaxSentDescriptors = 4;

/// Sends bytes with at most kMaxSentDescriptors descriptors over a connected Unix socket, without waiting. Returns as
/// sendmsg does; the first bytes take all descriptors with them.
ssize_t send_with(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

/// Receives what is there, and appends the descriptors that came with it. Returns as recvmsg does. Throws
/// Error(kUnavailable) if this process had no free descriptor for one of them; those that came are appended all the
/// same.
ssize_t receive_with(int socket, std::span<std::byte> into, std::vector<Fd>& descriptors);

/// Writes all of `bytes`. Returns 0, or the error number.
int write_all(const Fd& file, std::span<const std::byte> bytes) noexcept;

/// Creates a file that only this user may read, replacing any file of that name. Follows no links, so that in a shared
/// folder no other user can redirect the text. Throws Error(kUnavailable).
void write_private_file(const std::string& path, std::string_view text);

}  // namespace atl
