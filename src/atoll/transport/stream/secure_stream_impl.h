// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/transport/stream/secure_stream.h"
#include "atoll/transport/stream/tls_session.h"

namespace atl::transport {

/// Everything of a stream but its address. It reads and calls the owner only in calls from the loop: no function of the
/// stream itself leads to either.
struct SecureStream::Impl : std::enable_shared_from_this<SecureStream::Impl> {
  enum class State {
    kHandshake,
    kOpen,
    kParting,  ///< the last bytes are on their way; received bytes are dropped
    kClosed,   ///< the owner was notified, or the stream is gone
  };

  Impl(Loop& its_loop, Owner& its_owner, SecureStream& its_stream, Fd socket, Role role,
       std::shared_ptr<const Credentials> credentials, Options its_options);

  void begin();
  void end() noexcept;  ///< the stream is being destroyed

  void send(Piece piece);
  void close(std::chrono::milliseconds linger);
  void pause();
  void resume();

  // secure_stream.cpp
  void on_event(std::uint32_t events);
  void on_timer();
  void set_timer(std::chrono::milliseconds delay);
  void cancel_timer() noexcept;
  void watch();
  void post(void (Impl::*action)());
  void fail(const Error& error);
  void part(std::optional<Error> with);
  void finish(const std::optional<Error>& error);
  Error lost(int error_number) const;

  // secure_stream_receive.cpp
  void receive();
  void consume(std::span<const std::byte> bytes);
  bool advance_handshake();
  void deliver();
  void on_end_of_stream(int error_number);

  // secure_stream_send.cpp
  void post_flush();
  void flush();
  enum class Sent { kAll, kBlocked, kBroken };
  Sent send_output();
  bool encrypt_batch();
  void on_all_sent();
  void on_broken();

  Loop& loop;
  Owner& owner;
  SecureStream& stream;
  const Options options;
  const std::size_t batch_limit;
  Fd fd;
  TlsSession tls;
  State state = State::kHandshake;
  std::optional<Error> result;  // of kParting
  std::optional<Loop::TimerId> timer;
  std::uint32_t watched = 0;
  bool closing = false;

  bool paused = false;
  bool has_waiting = false;     // bytes that came before the pause: in `held` or in `tls`
  std::vector<std::byte> held;  // not decrypted yet

  std::deque<Piece> queue;
  std::size_t queued = 0;       // bytes of the queue and of the batch
  std::size_t batch = 0;        // plain bytes whose encrypted form is in tls.output()
  std::size_t output_sent = 0;  // of tls.output()
  bool undrained = false;
  bool blocked = false;  // until the socket has room
  bool flush_posted = false;
  int send_error = 0;
};

}  // namespace atl::transport
