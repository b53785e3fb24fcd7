// SPDX-License-Identifier: Apache-2.0
// The sending half of SecureStream: pieces are encrypted in batches, each of which takes few system calls.
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "atoll/transport/stream/secure_stream_impl.h"

namespace atl::transport {

namespace {

constexpr int kBatchesPerTurn = 8;  // then other streams get their turn

}  // namespace

void SecureStream::Impl::send(Piece piece) {
  if (piece.bytes.empty() || closing || state == State::kParting || state == State::kClosed) return;
  queued += piece.bytes.size();
  undrained = true;
  queue.push_back(std::move(piece));
  if (state == State::kOpen && !blocked) post_flush();
}

/// Flushes later in the same turn of the loop, so that pieces given together are sent together.
void SecureStream::Impl::post_flush() {
  if (!std::exchange(flush_posted, true)) post(&Impl::flush);
}

void SecureStream::Impl::flush() {
  flush_posted = false;
  for (int batches = 0; state != State::kClosed && send_error == 0; ++batches) {
    const Sent sent = send_output();
    blocked = sent == Sent::kBlocked || (sent == Sent::kAll && batches == kBatchesPerTurn && !queue.empty());
    watch();
    if (sent == Sent::kBroken) return on_broken();
    if (blocked) return;
    if (state == State::kParting) {
      ::shutdown(fd.get(), SHUT_WR);
      return;
    }
    if (state == State::kHandshake) return;
    if (queue.empty()) return on_all_sent();
    if (!encrypt_batch()) return;
  }
}

SecureStream::Impl::Sent SecureStream::Impl::send_output() {
  auto& output = tls.output();
  while (output_sent < output.size()) {
    const auto sent =
        ::send(fd.get(), output.data() + output_sent, output.size() - output_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return Sent::kBlocked;
    if (sent < 0) {
      send_error = errno;
      return Sent::kBroken;
    }
    output_sent += static_cast<std::size_t>(sent);
  }
  output.clear();
  output_sent = 0;
  queued -= std::exchange(batch, 0);
  return Sent::kAll;
}

/// Encrypts the next pieces. False: there is nothing to send now, or the stream has failed.
bool SecureStream::Impl::encrypt_batch() {
  try {
    while (tls.output().size() < batch_limit && !queue.empty()) {
      Piece& piece = queue.front();
      const std::size_t taken = tls.write(piece.bytes);
      if (taken == 0) break;
      batch += taken;
      piece.bytes = piece.bytes.subspan(taken);
      if (piece.bytes.empty()) queue.pop_front();
    }
  } catch (const Error& error) {
    fail(error);
    return false;
  }
  return !tls.output().empty();
}

void SecureStream::Impl::on_all_sent() {
  if (closing) {
    tls.say_goodbye();
    return part(std::nullopt);
  }
  if (std::exchange(undrained, false)) owner.on_drained(stream);
}

/// Reads first what the other end sent before, which may give the reason, above all an alert.
void SecureStream::Impl::on_broken() {
  if (state == State::kOpen && paused) return finish(lost(send_error));
  blocked = false;
  watch();
  post(&Impl::receive);
}

}  // namespace atl::transport
