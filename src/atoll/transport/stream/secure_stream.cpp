// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/secure_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <utility>

#include "atoll/transport/address.h"
#include "atoll/transport/stream/byte_stream.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAlertTime{500};  // for the alert that reports the error to the other end

// What one stream may do before others get their turn.
constexpr int kReadsPerTurnOfStream = 4;
constexpr std::size_t kWrittenPerTurn = std::size_t{576} << 10;
constexpr std::size_t kMaxPiecesAtOnce = 256;

/// Limits the bytes that are not on the network yet: unlike a limit on the whole send buffer, this never holds back
/// what the network would take.
void tune(int fd, const SecureStream::Options& options) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.socket_send_bytes != 0) {
    const auto bytes = std::min(options.socket_send_bytes, std::size_t{1} << 30);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
  }
  if (options.silence.count() <= 0) return;
  const int seconds = static_cast<int>(std::clamp<std::int64_t>(options.silence.count() / 1000, 1, 3600));
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 4));
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

}  // namespace

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
       std::shared_ptr<const Credentials> credentials, Options its_options)
      : loop(its_loop),
        owner(its_owner),
        stream(its_stream),
        options(std::move(its_options)),
        connection(std::move(socket)) {
    connection.secure(std::move(credentials), role, options.name, options.host);
    tune(connection.fd(), options);
  }

  void begin() {
    watched = EPOLLIN;
    loop.add_fd_on_loop(connection.fd(), watched, [weak = weak_from_this()](std::uint32_t events) {
      if (const auto self = weak.lock()) self->on_event(events);
    });
    set_timer(options.handshake_timeout);
    post(&Impl::receive);  // a client sends first
  }

  /// The stream is being destroyed.
  void end() noexcept {
    if (std::exchange(state, State::kClosed) == State::kClosed) return;
    cancel_timer();
    loop.remove_fd_on_loop(connection.fd());
    connection = ByteStream();
  }

  void post(void (Impl::*action)()) {
    loop.post([weak = weak_from_this(), action] {
      const auto self = weak.lock();
      if (self && self->state != State::kClosed) ((*self).*action)();
    });
  }

  void on_event(std::uint32_t events) {
    if (state == State::kClosed) return;
    if (state == State::kOpen && paused) {
      if ((events & (EPOLLERR | EPOLLHUP)) != 0) return end_of_stream(take_error(connection.fd()));
    } else if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
      return receive();
    }
    flush();
  }

  void watch() {
    if (state == State::kClosed) return;
    const bool wants_input = state != State::kOpen || !paused;
    const std::uint32_t events = (wants_input ? EPOLLIN : 0U) | (blocked ? EPOLLOUT : 0U);
    if (events == std::exchange(watched, events)) return;
    loop.modify_fd_on_loop(connection.fd(), events);
  }

  void set_timer(milliseconds delay) {
    cancel_timer();
    timer = loop.add_timer_on_loop(std::max(delay, milliseconds(0)), false, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->on_timer();
    });
  }

  void cancel_timer() noexcept {
    if (const auto id = std::exchange(timer, std::nullopt)) loop.cancel_timer_on_loop(*id);
  }

  void on_timer() {
    timer.reset();
    if (closing && state == State::kOpen) flush();  // without time to linger, nothing was tried before
    if (state == State::kParting) return finish(result);
    if (!closing) {
      return finish(Error(ErrorKind::kTimeout, "the TLS handshake with " + options.name + " was not complete within " +
                                                   std::to_string(options.handshake_timeout.count()) + " ms"));
    }
    if (queue.empty()) return finish(std::nullopt);
    finish(Error(ErrorKind::kTimeout, "closing the connection with " + options.name + ": it did not take " +
                                          std::to_string(unsent()) + " bytes in time"));
  }

  void receive() {
    if (state == State::kHandshake && !advance_handshake()) return;
    const auto buffer = loop_buffer();  // more than one read from the socket decrypts to, so that nothing is left over
    const iovec piece{buffer.data(), buffer.size()};
    bool is_drained = false;
    for (int reads = 0; reads < kReadsPerTurnOfStream && state != State::kClosed; ++reads) {
      // The loop reports further bytes; but after a failed send, read up to the end.
      if ((state == State::kOpen && paused) || (is_drained && send_error == 0)) break;
      std::ptrdiff_t got = 0;
      try {
        got = state == State::kParting ? connection.drop_input()
                                       : connection.read({&piece, 1}, &is_drained, send_error != 0);
      } catch (const Error& error) {
        return fail(error);
      }
      if (got < 0 && errno == EAGAIN && send_error == 0) break;
      if (got == 0 && connection.has_ended()) {
        connection.say_goodbye();  // as far as there is room: the other end no longer waits for it
        return finish(std::nullopt);
      }
      if (got <= 0) return end_of_stream(got < 0 ? errno : 0);
      if (state == State::kOpen && !closing) owner.on_bytes(stream, buffer.first(static_cast<std::size_t>(got)));
    }
    flush();
  }

  /// Returns whether the stream is open; otherwise it waits, or has failed.
  bool advance_handshake() {
    auto progress = ByteStream::Progress::kLost;
    try {
      progress = connection.handshake();
    } catch (const Error& error) {
      fail(error);
      return false;
    }
    if (progress == ByteStream::Progress::kLost) end_of_stream(errno);
    if (progress == ByteStream::Progress::kWaits) flush();
    if (progress != ByteStream::Progress::kOpen) return false;
    state = State::kOpen;
    watch();
    if (closing) return true;
    cancel_timer();
    owner.on_open(stream);
    return state == State::kOpen;
  }

  /// The connection has ended, for that reason if no send failed before; 0: without an error.
  void end_of_stream(int error_number) {
    const int first_error = send_error != 0 ? send_error : error_number;
    finish(state == State::kParting && (result || first_error == 0) ? result : lost(first_error));
  }

  void send(Piece piece) {
    if (piece.bytes.empty() || closing || state == State::kParting || state == State::kClosed) return;
    queued += piece.bytes.size();
    undrained = true;
    queue.push_back(std::move(piece));
    if (state == State::kOpen && !blocked) post_flush();
  }

  std::size_t unsent() const noexcept { return queued + connection.held_bytes(); }

  /// Flushes later in the same turn of the loop, so that pieces given together are sent together.
  void post_flush() {
    if (!std::exchange(flush_posted, true)) post(&Impl::flush);
  }

  void flush() {
    flush_posted = false;
    if (state == State::kClosed || send_error != 0) return;
    std::size_t limit = kWrittenPerTurn;
    bool has_room = true;
    do {
      has_room = write_some(&limit);
    } while (has_room && limit != 0 && state == State::kOpen && !queue.empty());
    blocked = connection.holds_output() || (has_room && state == State::kOpen && !queue.empty());
    watch();
    if (send_error != 0) return on_broken();
    if (blocked) return;
    if (state == State::kParting) ::shutdown(connection.fd(), SHUT_WR);
    if (state != State::kOpen || !queue.empty()) return;
    if (closing) {
      connection.say_goodbye();
      return part(std::nullopt);
    }
    if (std::exchange(undrained, false)) owner.on_drained(stream);
  }

  /// Writes what was held, then pieces of the queue, in few system calls. Returns false if not all was taken.
  bool write_some(std::size_t* limit) {
    std::array<iovec, kMaxPiecesAtOnce> pieces;
    std::size_t count = 0;
    std::size_t given = 0;
    for (const Piece& piece : queue) {
      if (state != State::kOpen || count == pieces.size() || given == *limit) break;
      const std::size_t size = std::min(piece.bytes.size(), *limit - given);
      pieces[count++] = piece_of(piece.bytes.first(size));
      given += size;
    }
    const auto taken = connection.write(std::span(pieces).first(count));
    const bool has_room = taken == static_cast<std::ptrdiff_t>(given) && !connection.holds_output();
    if (!has_room && errno != EAGAIN) send_error = errno;
    *limit -= given;
    for (std::size_t rest = taken > 0 ? static_cast<std::size_t>(taken) : 0; rest != 0;) {
      Piece& piece = queue.front();
      const std::size_t size = std::min(rest, piece.bytes.size());
      piece.bytes = piece.bytes.subspan(size);
      queued -= size;
      rest -= size;
      if (piece.bytes.empty()) queue.pop_front();
    }
    return has_room;
  }

  /// Reads first what the other end sent before, which may give the reason, above all an alert.
  void on_broken() {
    if (state == State::kOpen && paused) return finish(lost(send_error));
    blocked = false;
    watch();
    post(&Impl::receive);
  }

  /// An alert that waits in the output is sent first: closing at once would turn into a reset, which overtakes it.
  void fail(const Error& error) {
    if (state == State::kClosed) return;
    if (send_error != 0 || !(connection.wants_write() || connection.holds_output())) return finish(error);
    set_timer(kAlertTime);
    part(error);
  }

  void part(std::optional<Error> with) {
    state = State::kParting;
    result = std::move(with);
    paused = false;
    queue.clear();
    queued = 0;
    watch();
    flush();
  }

  void finish(const std::optional<Error>& error) {
    if (state == State::kClosed) return;
    end();
    queue.clear();
    queued = 0;
    owner.on_closed(stream, error);
  }

  Error lost(int error_number) const {
    const std::string who = "the other end at " + options.name;
    if (error_number == ETIMEDOUT) {
      return {ErrorKind::kPeerLost, with_errno(who + " no longer takes or acknowledges data", error_number)};
    }
    if (error_number != 0) return {ErrorKind::kPeerLost, with_errno(who + " broke the connection", error_number)};
    if (state == State::kHandshake) return {ErrorKind::kPeerLost, who + " ended the connection during the handshake"};
    return {ErrorKind::kPeerLost, who + " ended the connection without a goodbye: it died, or was stopped"};
  }

  void close(milliseconds linger) {
    if (closing || state == State::kParting || state == State::kClosed) return;
    closing = true;
    resume();
    if (state == State::kOpen) {
      set_timer(linger);
      post_flush();
    } else {
      set_timer(queue.empty() ? milliseconds(0) : std::min(linger, options.handshake_timeout));
    }
  }

  void pause() {
    if (closing) return;
    paused = true;
    watch();
  }

  void resume() {
    if (!std::exchange(paused, false)) return;
    watch();
    if (connection.holds_input()) post(&Impl::receive);
  }

  Loop& loop;
  Owner& owner;
  SecureStream& stream;
  const Options options;
  ByteStream connection;
  State state = State::kHandshake;
  std::optional<Error> result;  // of kParting
  std::optional<Loop::TimerId> timer;
  std::uint32_t watched = 0;
  bool closing = false;
  bool paused = false;

  std::deque<Piece> queue;
  std::size_t queued = 0;  // bytes
  bool undrained = false;
  bool blocked = false;  // until the socket has room, or other streams had their turn
  bool flush_posted = false;
  int send_error = 0;
};

SecureStream::SecureStream(Loop& loop, Owner& owner, Fd socket, Role role,
                           std::shared_ptr<const Credentials> credentials, Options options)
    : impl_(std::make_shared<Impl>(loop, owner, *this, std::move(socket), role, std::move(credentials),
                                   std::move(options))) {
  impl_->begin();
}

SecureStream::~SecureStream() { impl_->end(); }
void SecureStream::send_on_loop(Piece piece) { impl_->send(std::move(piece)); }
std::size_t SecureStream::queued_bytes() const noexcept { return impl_->unsent(); }
void SecureStream::close_on_loop(milliseconds linger) { impl_->close(linger); }
void SecureStream::pause_on_loop() { impl_->pause(); }
void SecureStream::resume_on_loop() { impl_->resume(); }
const std::string& SecureStream::name() const noexcept { return impl_->options.name; }

}  // namespace atl::transport
