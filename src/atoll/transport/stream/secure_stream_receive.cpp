// SPDX-License-Identifier: Apache-2.0
// The receiving half of SecureStream.
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <span>
#include <utility>

#include "atoll/transport/stream/secure_stream_impl.h"

namespace atl::transport {

namespace {

constexpr std::size_t kReceiveBytes = std::size_t{64} << 10;
constexpr int kStreamReadsPerTurn = 4;  // then other streams get their turn

/// One per loop thread: what is read into it is consumed, or kept elsewhere, before the next stream reads. The first
/// half is for encrypted bytes, the second for plain ones.
std::span<std::byte> records() {
  thread_local std::unique_ptr<std::byte[]> memory;
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(2 * kReceiveBytes);
  return {memory.get(), 2 * kReceiveBytes};
}

}  // namespace

void SecureStream::Impl::receive() {
  if (std::exchange(has_waiting, false)) {
    const auto before = std::exchange(held, {});
    consume(before);
  }
  const auto buffer = records().first(kReceiveBytes);
  for (int reads = 0; reads < kStreamReadsPerTurn && state != State::kClosed; ++reads) {
    if (state == State::kOpen && paused) break;
    const auto got = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (send_error != 0) finish(result ? result : lost(send_error));
      break;
    }
    if (got <= 0) return on_end_of_stream(got < 0 ? errno : 0);
    const auto bytes = buffer.first(static_cast<std::size_t>(got));
    if (state != State::kParting) consume(bytes);
    // The loop reports further bytes; but after a failed send, read up to the end.
    if (bytes.size() < buffer.size() && send_error == 0) break;
  }
  flush();
}

void SecureStream::Impl::consume(std::span<const std::byte> bytes) {
  tls.give(bytes);
  if (state != State::kHandshake || advance_handshake()) deliver();
  if (state == State::kOpen && paused) {
    has_waiting = true;
    const auto rest = tls.rest();
    held.assign(rest.begin(), rest.end());
  }
  tls.give({});
}

bool SecureStream::Impl::advance_handshake() {
  try {
    if (!tls.handshake()) return false;
  } catch (const Error& error) {
    fail(error);
    return false;
  }
  state = State::kOpen;
  watch();
  if (closing) return true;
  cancel_timer();
  owner.on_open(stream);
  return state == State::kOpen;
}

void SecureStream::Impl::deliver() {
  const auto plain = records().last(kReceiveBytes);
  while (state == State::kOpen && !paused) {
    std::size_t count = 0;
    try {
      count = tls.read(plain);
    } catch (const Error& error) {
      return fail(error);
    }
    if (count == 0) break;
    if (!closing) owner.on_bytes(stream, plain.first(count));
  }
  if (state != State::kOpen || paused || !tls.has_ended()) return;
  tls.say_goodbye();
  send_output();  // as far as there is room: the other end no longer waits for it
  finish(std::nullopt);
}

void SecureStream::Impl::on_end_of_stream(int error_number) {
  const int first_error = send_error != 0 ? send_error : error_number;
  if (state != State::kParting) return finish(lost(first_error));
  if (result || first_error == 0) return finish(result);
  finish(lost(first_error));
}

}  // namespace atl::transport
