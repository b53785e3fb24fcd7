// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/byte_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/stream/tls_session.h"

namespace atl::transport {

namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kBatchBytes = std::size_t{64} << 10;  // encrypted before they are written to the socket
constexpr std::size_t kRecordBytes = std::size_t{16} << 10;

std::size_t total(std::span<const iovec> pieces) noexcept {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

/// Returns the bytes of the next record, after `skip`: those of one piece where they are, or of several pieces that do
/// not fill a record each, collected in `record`.
std::span<const std::byte> next_record(std::span<const iovec> pieces, std::size_t skip, std::span<std::byte> record) {
  std::span<const std::byte> found;
  for (const iovec& piece : pieces) {
    if (found.size() == record.size()) break;
    const std::size_t gone = std::min(skip, piece.iov_len);
    skip -= gone;
    const std::span rest(static_cast<const std::byte*>(piece.iov_base) + gone, piece.iov_len - gone);
    const auto part = rest.first(std::min(rest.size(), record.size() - found.size()));
    if (part.empty()) continue;
    if (found.empty()) {
      found = part;
      continue;
    }
    if (rest.size() >= record.size()) break;
    if (found.data() != record.data()) std::memcpy(record.data(), found.data(), found.size());
    std::memcpy(record.data() + found.size(), part.data(), part.size());
    found = record.first(found.size() + part.size());
  }
  return found;
}

}  // namespace

std::span<std::byte> loop_buffer() {
  constexpr std::size_t kBytes = std::size_t{128} << 10;
  thread_local std::unique_ptr<std::byte[]> memory;
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  return {memory.get(), kBytes};
}

struct ByteStream::Secure {
  Secure(std::shared_ptr<const Credentials> credentials, TlsRole role, const std::string& name, const std::string& host)
      : session(std::move(credentials), role, name, host),
        input(std::make_unique_for_overwrite<std::byte[]>(kReadBytes)),
        record(std::make_unique_for_overwrite<std::byte[]>(kRecordBytes)) {}

  std::mutex mutex;  // guards the two that follow
  TlsSession session;
  bool is_held_up = false;

  // The reader's.
  const std::unique_ptr<std::byte[]> input;
  std::span<const std::byte> rest;  // of the input, not decrypted yet
  bool is_drained = false;          // the last read left the socket empty
  bool may_hold_more = false;       // decrypted bytes found no place

  // The writer's.
  const std::unique_ptr<std::byte[]> record;
  std::vector<std::byte> output;
  std::size_t output_sent = 0;
  std::size_t output_plain = 0;  // bytes whose encrypted form the output is
};

ByteStream::ByteStream() noexcept = default;
ByteStream::ByteStream(Fd socket) noexcept : fd_(std::move(socket)) {}
ByteStream::~ByteStream() = default;
ByteStream::ByteStream(ByteStream&& other) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&& other) noexcept = default;

void ByteStream::secure(std::shared_ptr<const Credentials> credentials, TlsRole role, const std::string& name,
                        const std::string& host) {
  secure_ = std::make_unique<Secure>(std::move(credentials), role, name, host);
}

std::ptrdiff_t ByteStream::receive(std::span<const iovec> pieces) {
  const auto got = retried([&] { return ::readv(fd_.get(), pieces.data(), static_cast<int>(pieces.size())); });
  if (got > 0) received_bytes_ += static_cast<std::uint64_t>(got);
  return got;
}

ByteStream::Progress ByteStream::handshake() {
  if (secure_ == nullptr) return Progress::kOpen;
  Secure& secure = *secure_;
  for (;;) {
    secure.session.give(secure.rest);
    const bool is_open = secure.session.handshake();
    secure.rest = secure.session.rest();
    secure.session.give({});
    if (!flush() && errno != EAGAIN) return Progress::kLost;
    if (is_open) return Progress::kOpen;
    const iovec piece{secure.input.get(), kReadBytes};
    const auto got = receive({&piece, 1});
    if (got < 0 && errno == EAGAIN) return Progress::kWaits;
    if (got == 0) errno = 0;
    if (got <= 0) return Progress::kLost;
    secure.rest = {secure.input.get(), static_cast<std::size_t>(got)};
  }
}

std::ptrdiff_t ByteStream::read(std::span<const iovec> pieces, bool* drained, bool to_end) {
  if (secure_ != nullptr) return read_secure(pieces, drained, to_end);
  const auto got = receive(pieces);
  *drained = got >= 0 && static_cast<std::size_t>(got) < total(pieces);
  return got;
}

std::ptrdiff_t ByteStream::read_secure(std::span<const iovec> pieces, bool* drained, bool to_end) {
  Secure& secure = *secure_;
  for (bool is_short = false;;) {
    const std::size_t count = decrypt(pieces);
    secure.may_hold_more = count == total(pieces);
    *drained = secure.is_drained && !holds_input();
    if (count != 0 || secure.session.has_ended()) return static_cast<std::ptrdiff_t>(count);
    if (is_short && !to_end) {
      errno = EAGAIN;
      return -1;
    }
    const iovec piece{secure.input.get(), kReadBytes};
    const auto got = receive({&piece, 1});
    if (got <= 0) return got;
    secure.rest = {secure.input.get(), static_cast<std::size_t>(got)};
    secure.is_drained = is_short = static_cast<std::size_t>(got) < kReadBytes;
  }
}

std::size_t ByteStream::decrypt(std::span<const iovec> pieces) {
  Secure& secure = *secure_;
  const std::lock_guard lock(secure.mutex);
  secure.session.give(secure.rest);
  std::size_t count = 0;
  try {
    for (const iovec& piece : pieces) {
      const std::size_t got = secure.session.read({static_cast<std::byte*>(piece.iov_base), piece.iov_len});
      count += got;
      if (got < piece.iov_len) break;
    }
  } catch (const Error&) {
    if (count == 0) throw;  // otherwise the next read throws
  }
  secure.rest = secure.session.rest();
  secure.session.give({});
  return count;
}

bool ByteStream::holds_input() const noexcept {
  return secure_ != nullptr && (secure_->may_hold_more || !secure_->rest.empty() || secure_->session.is_read_out());
}

bool ByteStream::has_ended() const noexcept { return secure_ != nullptr && secure_->session.has_ended(); }

std::ptrdiff_t ByteStream::drop_input() {
  std::array<std::byte, kRecordBytes> dropped;
  const iovec piece{dropped.data(), dropped.size()};
  return receive({&piece, 1});
}

std::ptrdiff_t ByteStream::write(std::span<const iovec> pieces) {
  if (secure_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return retried([&] { return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
  }
  const std::size_t bytes = total(pieces);
  std::size_t taken = 0;
  while (flush()) {
    if (taken == bytes) return static_cast<std::ptrdiff_t>(taken);
    const std::size_t more = encrypt(pieces, taken);
    if (more == 0 && secure_->output.empty()) break;
    taken += more;
  }
  if (taken != 0) return static_cast<std::ptrdiff_t>(taken);
  return -1;
}

bool ByteStream::write_from(std::vector<std::byte>& output) {
  while (!output.empty()) {
    const iovec piece = piece_of(output);
    const auto sent = write({&piece, 1});
    if (sent < 0) return errno == EAGAIN;
    output.erase(output.begin(), output.begin() + sent);
  }
  return true;
}

/// Encrypts a batch of records from the bytes after the first `skip`. Returns the number of bytes; if 0, errno says
/// why.
std::size_t ByteStream::encrypt(std::span<const iovec> pieces, std::size_t skip) {
  Secure& secure = *secure_;
  const std::lock_guard lock(secure.mutex);
  std::size_t taken = 0;
  int reason = EAGAIN;
  try {
    while (secure.session.output().size() < kBatchBytes) {
      const auto bytes = next_record(pieces, skip + taken, {secure.record.get(), kRecordBytes});
      if (bytes.empty()) break;
      const std::size_t count = secure.session.write(bytes);
      secure.is_held_up = count == 0;
      if (count == 0) break;
      taken += count;
    }
  } catch (const Error&) {
    reason = EPROTO;  // reading reports the reason
  }
  std::swap(secure.output, secure.session.output());
  secure.output_plain = taken;
  errno = reason;  // the library may have changed it
  return taken;
}

bool ByteStream::flush() {
  if (secure_ == nullptr) return true;
  Secure& secure = *secure_;
  if (secure.output.empty()) {
    const std::lock_guard lock(secure.mutex);
    std::swap(secure.output, secure.session.output());
  }
  while (secure.output_sent < secure.output.size()) {
    const auto rest = std::span(secure.output).subspan(secure.output_sent);
    const auto sent = retried([&] { return ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (sent < 0) return false;
    secure.output_sent += static_cast<std::size_t>(sent);
  }
  secure.output.clear();
  secure.output_sent = secure.output_plain = 0;
  return true;
}

void ByteStream::say_goodbye() {
  if (secure_ == nullptr) return;
  {
    const std::lock_guard lock(secure_->mutex);
    secure_->session.say_goodbye();
  }
  if (flush()) flush();  // first what was held
}

bool ByteStream::holds_output() const noexcept { return secure_ != nullptr && !secure_->output.empty(); }

std::size_t ByteStream::held_bytes() const noexcept { return secure_ != nullptr ? secure_->output_plain : 0; }

bool ByteStream::wants_write() const {
  if (secure_ == nullptr) return false;
  const std::lock_guard lock(secure_->mutex);
  return secure_->is_held_up || !secure_->session.output().empty();
}

void ByteStream::close() noexcept {
  if (fd_ && flush()) flush();
  fd_.reset();
  secure_.reset();
}

}  // namespace atl::transport
