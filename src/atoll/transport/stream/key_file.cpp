// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/key_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/transport/auth.h"

namespace atl::transport {

namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr std::size_t kMaxFileBytes = kMaxKeyBytes + 64;  // with the line ends after the key

[[noreturn]] void fail(ErrorKind kind, const std::string& path, const std::string& why) {
  throw Error(kind, "key file " + path + " " + why);
}

[[noreturn]] void fail_with_errno(const std::string& path, const char* why, int error) {
  fail(ErrorKind::kUnavailable, path, with_errno(why, error));
}

void expect_private(const Fd& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(path, "cannot be examined", errno);
  if (S_ISDIR(status.st_mode)) fail(ErrorKind::kUnavailable, path, "is a folder");
  if ((status.st_mode & kOthers) == 0) return;
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
  fail(ErrorKind::kInvalidArgument, path,
       std::string("has mode ") + mode + ": users other than its owner can access it; run chmod 600 " + path);
}

/// Reads at most `limit` bytes.
std::vector<std::byte> read_all(const Fd& file, const std::string& path, std::size_t limit) {
  std::vector<std::byte> bytes(limit);
  std::size_t count = 0;
  while (count < limit) {
    const auto got = ::read(file.get(), bytes.data() + count, limit - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path, "cannot be read", errno);
    if (got == 0) break;
    count += static_cast<std::size_t>(got);
  }
  bytes.resize(count);
  return bytes;
}

std::string random_digits() {
  std::array<std::byte, 32> random;
  fill_random(random);
  std::string text = hex(random);
  OPENSSL_cleanse(random.data(), random.size());
  return text;
}

}  // namespace

std::span<const std::byte> without_line_ends(std::span<const std::byte> key) noexcept {
  while (!key.empty() && (key.back() == std::byte{'\n'} || key.back() == std::byte{'\r'})) {
    key = key.first(key.size() - 1);
  }
  return key;
}

void require_private_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) fail_with_errno(path, "cannot be opened", errno);
  expect_private(file, path);
}

std::vector<std::byte> read_key_file(const std::string& path, std::size_t least) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) fail_with_errno(path, "cannot be opened", errno);
  expect_private(file, path);
  auto key = read_all(file, path, kMaxFileBytes);
  key.resize(without_line_ends(key).size());
  if (key.size() > kMaxKeyBytes) {
    fail(ErrorKind::kInvalidArgument, path,
         "holds more than " + std::to_string(kMaxKeyBytes) + " bytes, so it is not a key");
  }
  if (key.size() < least) {
    fail(ErrorKind::kInvalidArgument, path,
         "holds " + std::to_string(key.size()) + " bytes; at least " + std::to_string(least) + " are needed");
  }
  return key;
}

std::vector<std::byte> make_key_file(const std::string& path) {
  const std::string digits = random_digits();
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file) {
    const int error = errno;
    if (error == EEXIST) fail(ErrorKind::kInvalidArgument, path, "already exists; choose another name");
    fail_with_errno(path, "cannot be made", error);
  }
  const std::string line = digits + "\n";
  int error = write_all(file, as_byte_span(line));
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  if (error != 0) {
    ::unlink(path.c_str());
    fail_with_errno(path, "cannot be written", error);
  }
  const auto key = as_byte_span(digits);
  return {key.begin(), key.end()};
}

}  // namespace atl::transport
