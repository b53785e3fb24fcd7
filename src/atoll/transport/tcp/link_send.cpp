// SPDX-License-Identifier: Apache-2.0
// The sending half of TcpLink. Everything that touches the socket or the queue holds the link's mutex. Whatever the queue holds,
// the socket has refused: the loop hears from the kernel when there is room, so a non-empty queue needs no wake-up.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "atoll/transport/tcp/link.h"

namespace atl::transport {

namespace {

using tcp::Prefix;
using tcp::Type;

constexpr std::size_t kMaxControlQueue = std::size_t{64} << 10;  // most of the urgent lane stays for credit

iovec piece(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

}  // namespace

/// Returns how many bytes the socket took; 0 when it is full or broken.
std::size_t TcpLink::send_pieces(iovec* pieces, std::size_t count) {
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  for (;;) {
    const auto sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes_out_ += static_cast<std::uint64_t>(sent);
      return static_cast<std::size_t>(sent);
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && send_error_ == 0) {
      send_error_ = errno;
      // What the peer sent before it went is still to be read: the loop decides how the link ends.
      loop().post([this] { broken_on_loop(); });
    }
    return 0;
  }
}

bool TcpLink::send_frame(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  if (!can_send()) return false;
  const bool open = channel.number() == 0;
  const std::size_t total =
      sizeof(Prefix) + sizeof header + payload.size() + (open ? sizeof(Prefix) + sizeof(tcp::OpenBody) : 0);
  if (!queue_.empty() && !queue_.fits(total)) {
    starved_ = true;
    return false;
  }
  if (open) {
    const std::lock_guard channels_lock(channels_mutex_);
    outgoing_.push_back(&channel);
    channel.set_number(static_cast<std::uint32_t>(outgoing_.size()));
  }
  const ChannelId& id = channel.id();
  const Prefix open_prefix{.type = Type::kOpen, .channel = channel.number(), .length = sizeof(tcp::OpenBody)};
  const tcp::OpenBody open_body{id.group, id.index, static_cast<std::uint32_t>(id.bell), channel.window_bytes()};
  const Prefix prefix{
      .type = Type::kData, .channel = channel.number(), .length = static_cast<std::uint32_t>(payload.size())};
  const auto opening = [&](const auto& value) { return open ? tcp::bytes_of(value) : std::span<const std::byte>{}; };
  // Before the bytes leave, because credit for them may come back at once.
  channel.note_sent(tcp::footprint(payload.size()));
  std::size_t sent = 0;
  if (queue_.empty()) {
    std::array pieces{piece(opening(open_prefix)), piece(opening(open_body)), piece(tcp::bytes_of(prefix)),
                      piece(tcp::bytes_of(header)), piece(payload)};
    sent = send_pieces(pieces.data(), pieces.size());
    if (sent == total) return true;
  }
  if (open) {
    // Two messages; the queue keeps track of where each one ends.
    const std::size_t open_bytes = sizeof open_prefix + sizeof open_body;
    if (sent < open_bytes) queue_.push({tcp::bytes_of(open_prefix), tcp::bytes_of(open_body)}, sent);
    sent = sent > open_bytes ? sent - open_bytes : 0;
  }
  queue_.push({tcp::bytes_of(prefix), tcp::bytes_of(header), payload}, sent);
  return true;
}

bool TcpLink::queue_control(Lane lane, std::span<const std::byte> message) {
  if (message.size() > max_control_) {
    throw Error(ErrorKind::kInvalidArgument, "a control message of " + std::to_string(message.size()) + " bytes");
  }
  if (state() != LinkState::kUp) return false;
  const std::lock_guard lock(mutex_);
  const bool fits = lane == Lane::kUrgent ? queue_.urgent_bytes() + message.size() <= kMaxControlQueue
                                          : queue_.fits_small(sizeof(Prefix) + message.size());
  if (!can_send() || !fits) return false;
  send_small(lane, Type::kControl, 0, message);
  return true;
}

/// A message that is small enough never to be refused by a bounded queue, in the given lane.
void TcpLink::send_small(Lane lane, Type type, std::uint32_t number, std::span<const std::byte> body) {
  const Prefix prefix{.type = type, .channel = number, .length = static_cast<std::uint32_t>(body.size())};
  std::size_t sent = 0;
  if (queue_.empty()) {
    std::array pieces{piece(tcp::bytes_of(prefix)), piece(body)};
    sent = send_pieces(pieces.data(), pieces.size());
    if (sent == sizeof prefix + body.size()) return;
  }
  const tcp::SendQueue::Parts parts{tcp::bytes_of(prefix), body};
  const bool queued = lane == Lane::kUrgent ? queue_.push_urgent(parts, sent) : queue_.push_small(parts, sent);
  if (!queued)
    fail_later(Error(ErrorKind::kInternal, "the send queue to " + peer_name() + " has no room for a small message"));
}

void TcpLink::send_credit(TcpChannel& channel, std::uint64_t released) {
  const std::lock_guard lock(mutex_);
  // The number is the peer's. Once it is closed the peer needs no credit.
  const std::uint32_t number = channel.peer_number();
  if (can_send() && number != 0) send_small(Lane::kUrgent, Type::kCredit, number, tcp::bytes_of(released));
}

void TcpLink::send_heartbeat_on_loop() {
  const std::uint64_t interval_ms = static_cast<std::uint64_t>(options().heartbeat.count());
  const std::lock_guard lock(mutex_);
  // A full queue is no silence: the socket holds bytes that are on their way.
  if (can_send() && queue_.empty()) send_small(Lane::kUrgent, Type::kHeartbeat, 0, tcp::bytes_of(interval_ms));
}

void TcpLink::flush_on_loop() {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    std::array<iovec, tcp::SendQueue::kMaxPieces> pieces;
    while (fd_ && !queue_.empty()) {
      const std::size_t sent = send_pieces(pieces.data(), queue_.gather(pieces));
      if (sent == 0) break;
      queue_.consume(sent);
    }
    if (starved_ && queue_.half_free()) {
      starved_ = false;
      wake = true;
    }
    if (fd_ && said_bye_ && !sent_all_ && queue_.empty()) {
      ::shutdown(fd_.get(), SHUT_WR);
      sent_all_ = true;
    }
  }
  if (wake) doorbell().ring_all();
}

void TcpLink::broken_on_loop() {
  hangup_ = true;
  while (receive_turn_on_loop()) {
  }
  int error = 0;
  {
    const std::lock_guard lock(mutex_);
    error = send_error_;
  }
  if (state() == LinkState::kUp) end_of_stream_on_loop(error);
}

}  // namespace atl::transport
