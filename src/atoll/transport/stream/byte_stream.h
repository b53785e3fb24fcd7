// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

/// Describes bytes that are only read, for the system's calls.
inline iovec piece_of(std::span<const std::byte> bytes) noexcept {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

/// The memory of this thread into which its streams read, 128 KiB. Its content is consumed before the next read.
std::span<std::byte> loop_buffer();

/// A connected, non-blocking stream socket, in clear or inside TLS 1.3. One thread may read while another writes:
/// reading belongs to one thread, and the owner serialises the writers.
class ByteStream {
 public:
  ByteStream() noexcept;
  ByteStream(Fd socket) noexcept;  // NOLINT(google-explicit-constructor): a socket is a stream in clear
  ~ByteStream();
  ByteStream(ByteStream&& other) noexcept;
  ByteStream& operator=(ByteStream&& other) noexcept;

  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  int fd() const noexcept { return fd_.get(); }
  bool is_secure() const noexcept { return secure_ != nullptr; }

  /// Hands over the socket of a stream in clear; the stream is empty afterwards.
  Fd take_fd() noexcept { return std::move(fd_); }

  /// Puts everything inside TLS. Called before any byte has passed. `name` is the other end's, for messages; `host` is
  /// the one whose certificate a client accepts. Throws as TlsSession's constructor.
  void secure(std::shared_ptr<const Credentials> credentials, TlsRole role, const std::string& name,
              const std::string& host = "");

  enum class Progress {
    kOpen,
    kWaits,  ///< for the socket
    kLost,   ///< errno says why; 0: the other end has ended
  };

  /// Starts or continues the TLS handshake; returns kOpen at once in clear. Throws as TlsSession::handshake does.
  /// Called by one thread, before reading and writing, and again where a write is held up.
  Progress handshake();

  /// As readv: returns the number of bytes, 0 at the end, -1 with errno. `drained`: the socket is empty, so that
  /// further bytes raise a new event. If the last bytes in the socket are no whole record, it returns EAGAIN, or, with
  /// `to_end`, reads again, for what no event will report. Throws Error(kProtocol) for bytes that were changed on the
  /// way, and what else TlsSession::read throws.
  std::ptrdiff_t read(std::span<const iovec> pieces, bool* drained, bool to_end = false);

  /// Returns whether received bytes, or the end, are held here and not in the socket, so that no event reports them.
  /// With the reader.
  bool holds_input() const noexcept;

  /// Returns whether the other end has said goodbye inside TLS, so that no byte that it sent is missing. With the
  /// reader.
  bool has_ended() const noexcept;

  /// Receives and drops some bytes, whatever they are: unread ones would turn a close into a reset, which can overtake
  /// what was sent last. Returns as read(). With the reader.
  std::ptrdiff_t drop_input();

  /// As sendmsg: returns the number of bytes taken, or -1 with errno. Bytes that were taken but found no room in the
  /// socket are held here, encrypted, until flush(). If bytes are held, or not all were taken, errno says why: EAGAIN
  /// if the socket is full, or, with nothing held, if TLS must first read more of what the other end sends.
  std::ptrdiff_t write(std::span<const iovec> pieces);

  /// Writes the beginning of `output`, as far as the socket takes it, and removes that. Returns false if it is broken;
  /// errno says why.
  bool write_from(std::vector<std::byte>& output);

  /// Writes held bytes to the socket. False: errno says why, EAGAIN if the socket is full.
  bool flush();
  bool holds_output() const noexcept;       ///< with the writer, like the next
  std::size_t held_bytes() const noexcept;  ///< of those that write() took; they count until all of them are sent

  /// Returns whether TLS has something to send since the last write, or held up a write until more input came: flush
  /// and write again. With the reader.
  bool wants_write() const;

  /// Tells the other end inside TLS that nothing follows, as far as there is room; flush() sends the rest. With the
  /// writer.
  void say_goodbye();

  /// The bytes received from the network so far, encrypted or not. With the reader.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  /// Closes the stream; sends a waiting alert if there is room.
  void close() noexcept;

 private:
  struct Secure;

  std::ptrdiff_t receive(std::span<const iovec> pieces);
  std::ptrdiff_t read_secure(std::span<const iovec> pieces, bool* drained, bool to_end);
  std::size_t decrypt(std::span<const iovec> pieces);
  std::size_t encrypt(std::span<const iovec> pieces, std::size_t skip);

  Fd fd_;
  std::unique_ptr<Secure> secure_;
  std::uint64_t received_bytes_ = 0;
};

}  // namespace atl::transport
