// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl {
namespace {

// A bit per descriptor number: the child of a fork may take no lock and allocate nothing, because another thread of the
// parent may have held any of them. Untouched parts of the table cost no memory.
constexpr std::size_t kMaxDescriptors = std::size_t{1} << 20;
constexpr std::size_t kBits = 64;
std::array<std::atomic<std::uint64_t>, kMaxDescriptors / kBits> registered{};
std::atomic<std::size_t> used_words{0};  // no bit is set beyond these words
std::atomic<std::uint32_t> forks{0};

std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (static_cast<std::size_t>(fd) % kBits); }
std::atomic<std::uint64_t>& word_of(int fd) { return registered[static_cast<std::size_t>(fd) / kBits]; }

void close_in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  const std::size_t words = used_words.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t bits = registered[i].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) ::close(static_cast<int>(i * kBits) + std::countr_zero(bits));
  }
}

void enroll(int fd) {
  const std::size_t words = static_cast<std::size_t>(fd) / kBits + 1;
  std::size_t known = used_words.load(std::memory_order_relaxed);
  while (known < words && !used_words.compare_exchange_weak(known, words, std::memory_order_relaxed)) {
  }
  word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

constexpr std::size_t kSpace = CMSG_SPACE(kMaxSentDescriptors * sizeof(int));

msghdr message_of(iovec& part) noexcept {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

std::uint32_t fork_depth() noexcept {
  static const int installed = ::pthread_atfork(nullptr, nullptr, close_in_child);
  static_cast<void>(installed);
  return forks.load(std::memory_order_relaxed);
}

Fd::Fd(int fd) : fd_(fd), process_(fork_depth()) {
  if (fd < 0) return;
  if (static_cast<std::size_t>(fd) >= kMaxDescriptors) {
    ::close(fd);
    throw Error(ErrorKind::kUnavailable, "descriptor ", fd, " is above the supported number of ", kMaxDescriptors,
                " open descriptors");
  }
  enroll(fd);
}

int Fd::release() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || process_ != fork_depth()) return -1;
  word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
  return fd;
}

void Fd::reset() noexcept {
  const int saved = errno;
  const int fd = release();
  if (fd >= 0) ::close(fd);
  errno = saved;
}

ssize_t send_with(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not change it
  msghdr message = message_of(part);
  alignas(cmsghdr) std::array<char, kSpace> space{};
  if (!descriptors.empty()) {
    const std::size_t size = std::min(descriptors.size(), kMaxSentDescriptors) * sizeof(int);
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), size);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_with(int socket, std::span<std::byte> into, std::vector<Fd>& descriptors) {
  iovec part{into.data(), into.size()};
  msghdr message = message_of(part);
  alignas(cmsghdr) std::array<char, kSpace> space{};
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = CMSG_LEN(0); offset + sizeof(int) <= item->cmsg_len; offset += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(item) + offset, sizeof descriptor);
      descriptors.emplace_back(descriptor);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(ErrorKind::kUnavailable, "cannot receive a peer's shared memory: out of descriptors (raise ulimit -n)");
  }
  return got;
}

int write_all(const Fd& file, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const auto written = retried([&] { return ::write(file.get(), bytes.data(), bytes.size()); });
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

void write_private_file(const std::string& path, std::string_view text) {
  const auto check = [&](int error) {
    if (error != 0) throw Error(ErrorKind::kUnavailable, with_errno("cannot write " + path, error));
  };
  check(::unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : errno);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  check(file ? 0 : errno);
  check(write_all(file, as_byte_span(text)));
}

}  // namespace atl
