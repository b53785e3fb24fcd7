// SPDX-License-Identifier: Apache-2.0
// The sending half of TcpLink. Everything that accesses a socket or a queue holds the link's mutex. A queue holds only
// what its socket has refused: the kernel notifies the loop when there is room, so a non-empty queue needs no wake-up.
#include <sys/socket.h>

#include <array>

#include "atoll/transport/tcp/link.h"

namespace atl::transport {

namespace {

using tcp::Prefix;
using tcp::Type;

constexpr std::size_t kMaxControlQueue = std::size_t{64} << 10;  // the rest of the urgent lane is for credit

}  // namespace

bool TcpLink::send_frame(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  if (!can_send()) return false;
  return spread_ ? send_spread(channel, header, payload) : send_whole(channel, header, payload);
}

tcp::OpenBody TcpLink::open_body(const TcpChannel& channel) const noexcept {
  const ChannelId& id = channel.id();
  return {id.group, id.index, static_cast<std::uint32_t>(id.bell), channel.window_bytes()};
}

void TcpLink::number_channel(TcpChannel& channel) {
  const std::lock_guard lock(channels_mutex_);
  outgoing_.push_back(&channel);
  channel.set_number(static_cast<std::uint32_t>(outgoing_.size()));
}

/// Sends over one rail.
bool TcpLink::send_whole(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  Rail& rail = *rails_.front();
  tcp::SendQueue& queue = rail.queue();
  const bool open = channel.number() == 0;
  const std::size_t total =
      sizeof(Prefix) + sizeof header + payload.size() + (open ? sizeof(Prefix) + sizeof(tcp::OpenBody) : 0);
  if (!queue.empty() && !queue.fits(total)) {
    starved_ = true;
    return false;
  }
  if (open) number_channel(channel);
  const Prefix open_prefix{.type = Type::kOpen, .channel = channel.number(), .length = sizeof(tcp::OpenBody)};
  const tcp::OpenBody body = open_body(channel);
  const Prefix prefix{
      .type = Type::kData, .channel = channel.number(), .length = static_cast<std::uint32_t>(payload.size())};
  const auto opening = [&](const auto& value) { return open ? bytes_of(value) : std::span<const std::byte>{}; };
  // Before the bytes leave, because their credit may return at once.
  channel.note_sent(footprint(payload.size()));
  std::size_t sent = 0;
  if (queue.empty()) {
    std::array pieces{piece_of(opening(open_prefix)), piece_of(opening(body)), piece_of(bytes_of(prefix)),
                      piece_of(bytes_of(header)), piece_of(payload)};
    sent = rail.write_pieces(pieces.data(), pieces.size());
    if (sent == total) return true;
  }
  if (open) {
    // Two messages; the queue keeps track of where each one ends.
    const std::size_t open_bytes = sizeof open_prefix + sizeof body;
    if (sent < open_bytes) queue.push({bytes_of(open_prefix), bytes_of(body)}, sent);
    sent = sent > open_bytes ? sent - open_bytes : 0;
  }
  queue.push({bytes_of(prefix), bytes_of(header), payload}, sent);
  return true;
}

/// Sends over several rails.
bool TcpLink::send_spread(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  if (!spread_->takes_frames()) {
    starved_ = true;
    return false;
  }
  tcp::SendStream& stream = channel.stream();
  if (channel.number() == 0) {
    number_channel(channel);
    channel.widen(rails_.size());
  }
  if (!stream.is_open()) stream.open(channel.number(), open_body(channel));
  const std::uint64_t position = channel.sent();
  stream.write(position, {bytes_of(header), payload});
  channel.note_sent(footprint(payload.size()));
  spread_->push_frame(stream, position, sizeof header + payload.size(), Clock::now());
  return true;
}

bool TcpLink::queue_control(Lane lane, std::span<const std::byte> message) {
  check_control(message, max_control_);
  if (state() != LinkState::kUp) return false;
  const std::lock_guard lock(mutex_);
  if (!can_send()) return false;
  const bool is_urgent = lane == Lane::kUrgent;
  if (spread_) {
    const auto now = Clock::now();
    return is_urgent ? spread_->push_control(Type::kControl, 0, message, false, now)
                     : spread_->push_after_frames(Type::kControl, 0, message, false, now);
  }
  const tcp::SendQueue& queue = rails_.front()->queue();
  const bool fits = is_urgent ? queue.urgent_bytes() + message.size() <= kMaxControlQueue
                              : queue.fits_small(sizeof(Prefix) + message.size());
  if (fits) send_small(*rails_.front(), lane, Type::kControl, 0, message);
  return fits;
}

/// Sends a message in the given lane that is small enough never to be refused by a bounded queue.
void TcpLink::send_small(Rail& rail, Lane lane, Type type, std::uint32_t number, std::span<const std::byte> body) {
  if (rail.write_small(lane, type, number, body)) return;
  fail_later(Error(ErrorKind::kInternal, "the send queue to " + peer_name() + " has no room for a small message"));
}

void TcpLink::send_credit(TcpChannel& channel, std::uint64_t released) {
  const std::lock_guard lock(mutex_);
  // The number is the peer's. Once it is closed the peer needs no credit.
  const std::uint32_t number = channel.peer_number();
  if (can_send() && number != 0) give_credit(number, released);
}

/// Credit on a rail that fails is lost; it is sent again then.
void TcpLink::give_credit(std::uint32_t number, std::uint64_t released) {
  Rail* const rail = spread_ ? spread_->nearest() : rails_.front().get();
  if (rail == nullptr) return;
  send_small(*rail, Lane::kUrgent, Type::kCredit, number, bytes_of(released));
  if (spread_) spread_->request_ack(*rail, Clock::now());
}

void TcpLink::send_heartbeat_on_loop(Rail& rail) {
  const std::uint64_t interval_ms = static_cast<std::uint64_t>(options().heartbeat.count());
  const std::lock_guard lock(mutex_);
  // A full queue is not silence: the socket holds bytes that are on their way.
  if (said_bye_ || !rail.is_ready()) return;
  send_small(rail, Lane::kUrgent, Type::kHeartbeat, 0, bytes_of(interval_ms));
}

void TcpLink::flush_on_loop(Rail& rail) {
  const bool wake = locked([&] {
    rail.write_rest();
    if (spread_) spread_->pump(Clock::now());
    return after_sending();
  });
  if (wake) doorbell().ring_all();
}

/// There may be room now, or everything was sent. Returns whether to wake a sender that waits for room.
bool TcpLink::after_sending() {
  const bool has_room = spread_ ? spread_->is_half_free() : rails_.front()->queue().half_free();
  const bool is_through = spread_ ? spread_->is_idle() : rails_.front()->is_open() && rails_.front()->has_left();
  if (said_bye_ && !sent_all_ && is_through) {
    // Over several rails the peer already has the bye, and what it still sends must be acknowledged.
    if (!spread_) ::shutdown(rails_.front()->fd(), SHUT_WR);
    sent_all_ = true;
  }
  if (!starved_ || !has_room) return false;
  starved_ = false;
  return true;
}

void TcpLink::on_ack(std::uint64_t total_bytes) {
  if (!spread_) tcp::bad_message("it acknowledges bytes on a link over one rail");
  const bool wake = locked([&] {
    spread_->acknowledged(*receiving_, total_bytes, Clock::now());
    return after_sending();
  });
  if (wake) doorbell().ring_all();
}

void TcpLink::on_broken(Rail& rail) {
  // What the peer sent before it ended is still to be read: the loop decides how the link ends.
  loop().post([this, &rail, generation = rail.generation()] { broken_on_loop(rail, generation); });
}

void TcpLink::broken_on_loop(Rail& rail, std::uint64_t generation) {
  const auto is_same = [&] { return rail.is_open() && rail.generation() == generation; };
  if (!is_same()) return;
  rail.watch.hangup = true;
  while (receive_turn_on_loop(rail)) {
  }
  const int error = locked([&] { return rail.send_error(); });
  if (state() == LinkState::kUp && is_same()) end_of_stream_on_loop(rail, error);
}

}  // namespace atl::transport
