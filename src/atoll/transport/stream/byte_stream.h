// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

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

  /// Puts everything inside TLS. Called before any byte has passed. `name` is the other end's, for messages. Throws
  /// Error(kUnavailable) when out of memory.
  void secure(std::shared_ptr<const Credentials> credentials, TlsRole role, const std::string& name);

  enum class Progress {
    kOpen,
    kWaits,  ///< for the socket
    kLost,   ///< errno says why; 0: the other end has ended
  };

  /// Starts or continues the TLS handshake; returns kOpen at once in clear. Throws as TlsSession::handshake does.
  /// Called by one thread, before reading and writing.
  Progress handshake();

  /// As readv: returns the number of bytes, 0 at the end, -1 with errno. `drained`: the socket is empty, so that
  /// further bytes raise a new event. Throws Error(kProtocol) for bytes that were changed on the way.
  std::ptrdiff_t read(std::span<const iovec> pieces, bool* drained);

  /// Returns whether received bytes are held here and not in the socket, so that no event reports them. With the
  /// reader.
  bool holds_input() const noexcept;

  /// As sendmsg: returns the number of bytes taken, or -1 with errno. Bytes that were taken but found no room in the
  /// socket are held here, encrypted, until flush().
  std::ptrdiff_t write(std::span<const iovec> pieces);

  /// Writes held bytes to the socket. False: errno says why, EAGAIN if the socket is full.
  bool flush();
  bool holds_output() const noexcept;  ///< with the writer

  /// Returns whether TLS has something to send since the last write, or held up a write until more input came: flush
  /// and write again. With the reader.
  bool wants_write() const;

  /// The bytes received from the network so far, encrypted or not. With the reader.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  /// Closes the stream; sends a waiting alert if there is room.
  void close() noexcept;

 private:
  struct Secure;

  std::ptrdiff_t receive(std::span<const iovec> pieces);
  std::ptrdiff_t read_secure(std::span<const iovec> pieces, bool* drained);
  std::size_t decrypt(std::span<const iovec> pieces);
  std::size_t encrypt(std::span<const iovec> pieces, std::size_t skip);

  Fd fd_;
  std::unique_ptr<Secure> secure_;
  std::uint64_t received_bytes_ = 0;
};

}  // namespace atl::transport
