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

/// A connected, non-blocking stream socket, in clear or inside TLS 1.3. Reading and writing may go on at the same time on two threads, not
/// each of them on two: reading is one thread's, what writes is guarded by the owner.
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

  /// The socket alone, of a stream in clear: the stream is empty then.
  Fd take_fd() noexcept { return std::move(fd_); }

  /// From here on, before any byte has passed, everything is inside TLS. `name` is the other end's, for messages. Error(kUnavailable)
  /// when memory is short.
  void secure(std::shared_ptr<const Credentials> credentials, TlsRole role, const std::string& name);

  enum class Progress {
    kOpen,
    kWaits,  ///< for the socket
    kLost,   ///< errno says why; 0: the other end has ended
  };

  /// Begins or continues the handshake of TLS; at once kOpen in clear. Throws as TlsSession::handshake does. One thread, before the rest.
  Progress handshake();

  /// As readv: how many bytes came, 0 at the end, -1 with errno. `drained`: after this a socket that has more says so by a new event. Throws
  /// Error(kProtocol) for bytes that the other end did not send so.
  std::ptrdiff_t read(std::span<const iovec> pieces, bool* drained);

  /// Bytes that came are here and not in the socket: no event tells of them. With the reader.
  bool holds_input() const noexcept;

  /// As sendmsg: how many bytes were taken, or -1 with errno. Taken bytes that the socket had no room for are here, encrypted: flush().
  std::ptrdiff_t write(std::span<const iovec> pieces);

  /// Gives the socket what is here. false: errno says why, EAGAIN for want of room.
  bool flush();
  bool holds_output() const noexcept;  ///< with the writer

  /// What TLS itself has to say since the last write, or a write that was held up until more had come: flush and write again. With the reader.
  bool asks_for_write() const;

  /// Bytes that came over the network so far, encrypted or not. With the reader.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  /// Closes it; an alert that waits is sent where there is room.
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
