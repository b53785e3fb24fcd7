// SPDX-License-Identifier: Apache-2.0
// The receiving half of TcpLink, on the loop thread alone.
#include <sys/epoll.h>

#include <cerrno>
#include <string>
#include <utility>

#include "atoll/transport/tcp/link.h"

namespace atl::transport {

namespace {

constexpr int kReadsPerTurn = 32;                                     // then other links get their turn
constexpr std::uint64_t kAcknowledgeEvery = std::uint64_t{32} << 10;  // bytes

}  // namespace

void TcpLink::on_event_on_loop(Rail& rail, std::uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) rail.watch.hangup = true;
  if ((events & EPOLLOUT) != 0) flush_on_loop(rail);
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) receive_on_loop(rail);
}

void TcpLink::receive_on_loop(Rail& rail) {
  if (receive_turn_on_loop(rail)) loop().post([this, &rail] { receive_on_loop(rail); });
}

/// Reads what has arrived, up to a limit. Returns whether there may be more.
bool TcpLink::receive_turn_on_loop(Rail& rail) {
  const auto can_read = [&] { return state() == LinkState::kUp && rail.is_open(); };
  int error = 0;
  bool ended = false;
  bool more = true;
  guarded_on_loop([&] {
    for (int reads = 0; reads < kReadsPerTurn && more && can_read(); ++reads) {
      bool drained = false;
      receiving_ = &rail;
      const auto got = rail.read_on_loop(&drained);
      error = got < 0 ? errno : 0;
      ended = got == 0 || (got < 0 && error != EAGAIN);
      // After a short read a new edge announces more, except for an end that was announced already.
      more = got > 0 && (!drained || rail.watch.hangup);
      ring_noted_on_loop();
      if (rail.wants_write_on_loop()) flush_on_loop(rail);
      acknowledge_on_loop(rail, kAcknowledgeEvery);
    }
  });
  if (ended) end_of_stream_on_loop(rail, error);
  if (!more && can_read()) rail.sleep_through_frame_on_loop();
  return more && can_read();
}

void TcpLink::end_of_stream_on_loop(Rail& rail, int error) {
  const bool is_leaving = locked([this] {
    peer_done_ = peer_done_ || !spread_ || open_rails_on_loop() < 2;
    return said_bye_;
  });
  const std::string why = error == 0 ? "end of file" : with_errno(error == ETIMEDOUT ? "unreachable" : "broken", error);
  if (spread_ && rail.is_open() && (is_leaving || open_rails_on_loop() > 1)) return drop_rail_on_loop(rail, why);
  if (is_leaving) return;  // both sides are closing: this end-of-file is expected
  if (error == 0) return fail_on_loop(lost("died: end of file"));
  fail_on_loop(lost(with_errno(error == ETIMEDOUT ? "is unreachable" : "died", error)));
}

TcpChannel& TcpLink::incoming(std::uint32_t number) const {
  const auto found = incoming_.find(number);
  if (found == incoming_.end()) tcp::bad_message("it names channel number ", number, ", which is not open");
  return *found->second;
}

std::byte* TcpLink::on_data(std::uint32_t number, std::uint32_t payload_bytes) {
  if (control_) tcp::bad_message("it sends whole frames on a link over several rails");
  receiving_->incoming = {&incoming(number), 0, payload_bytes, false};
  return receiving_->incoming.channel->begin_frame_on_loop(payload_bytes);
}

void TcpLink::on_data_complete(std::uint32_t /*number*/) {
  TcpChannel& channel = *receiving_->incoming.channel;
  channel.finish_frame_on_loop(receiving_->incoming.bytes);
  note_bell_on_loop(channel.id().bell);
}

/// A segment under way on another rail must be the same or have no byte in common: it is still being written after this
/// one is complete and visible.
void TcpLink::refuse_overlap_on_loop(const TcpChannel* channel, std::uint64_t position, std::uint32_t bytes) const {
  for (const auto& rail : rails_) {
    const Rail::Incoming& other = rail->incoming;
    if (!other.is_segment || other.channel != channel) continue;
    const bool is_same = other.position == position && other.bytes == bytes;
    const bool is_apart = position + tcp::whole_units(bytes) <= other.position ||
                          other.position + tcp::whole_units(other.bytes) <= position;
    if (!is_same && !is_apart) tcp::bad_message("a segment overlaps one that is under way on another rail");
  }
}

std::byte* TcpLink::on_segment(std::uint32_t number, std::uint64_t position, std::uint32_t bytes) {
  if (!control_) tcp::bad_message("it sends segments on a link over one rail");
  receiving_->watch.owes = true;
  TcpChannel* const channel = number == 0 ? nullptr : &incoming(number);
  refuse_overlap_on_loop(channel, position, bytes);
  receiving_->incoming = {channel, position, bytes, true};
  if (number == 0) return control_->begin(position, bytes);
  return channel->begin_segment_on_loop(position, bytes);
}

void TcpLink::on_segment_complete() {
  const Rail::Incoming done = std::exchange(receiving_->incoming, {});
  // The same bytes may still arrive over a rail that the peer has given up. Their place may soon be reused.
  for (const auto& other : rails_) {
    const Rail::Incoming& stale = other->incoming;
    if (stale.is_segment && stale.channel == done.channel && stale.position == done.position) {
      other->parser().drop_rest();
    }
  }
  if (done.channel != nullptr) {
    const bool shows = done.channel->finish_segment_on_loop(done.position, done.bytes);
    if (shows) note_bell_on_loop(done.channel->id().bell);
    return;
  }
  control_->finish(done.position, done.bytes);
  if (!control_->owes_credit()) return;
  const std::lock_guard lock(mutex_);
  give_credit(0, control_->released());
}

void TcpLink::drop_segments_on_loop(const TcpChannel& channel) {
  for (const auto& rail : rails_) {
    if (rail->incoming.is_segment && rail->incoming.channel == &channel) rail->parser().drop_rest();
  }
}

void TcpLink::acknowledge_on_loop(Rail& rail, std::uint64_t least_bytes) {
  if (!control_ || !rail.watch.owes || rail.bytes_in() - rail.watch.told < least_bytes) return;
  const std::uint64_t total = rail.bytes_in();
  rail.watch.owes = rail.incoming.is_segment;
  rail.watch.told = total;
  const std::lock_guard lock(mutex_);
  if (rail.can_write()) send_small(rail, Lane::kUrgent, tcp::Type::kAck, 0, bytes_of(total));
}

void TcpLink::on_probe() {
  if (!control_) tcp::bad_message("it probes a link over one rail");
  receiving_->watch.owes = true;
  acknowledge_on_loop(*receiving_, 0);
}

void TcpLink::on_credit(std::uint32_t number, std::uint64_t released_bytes) {
  if (number == 0 && control_) {
    const std::lock_guard lock(mutex_);
    spread_->control_released(released_bytes);
    return spread_->pump(Clock::now());
  }
  TcpChannel* channel = nullptr;
  {
    const std::lock_guard lock(channels_mutex_);
    if (number != 0 && number <= outgoing_.size()) channel = outgoing_[number - 1];
  }
  if (channel == nullptr) tcp::bad_message("it gives credit for channel number ", number, ", which was never opened");
  channel->note_released_on_loop(released_bytes, control_ == nullptr);
  note_bell_on_loop(channel->id().bell);
}

void TcpLink::on_open(std::uint32_t number, const tcp::OpenBody& body) {
  if (number == 0 || body.bell >= kBellCount || !is_valid_window(body.window_bytes)) {
    tcp::bad_message("it opens channel number ", number, " with bell ", body.bell, " and a window of ",
                     body.window_bytes, " bytes");
  }
  const bool again = control_ != nullptr;  // each rail repeats it
  TcpChannel& channel = find_or_make({body.group, body.index, static_cast<Bell>(body.bell)}, false);
  channel.open_on_loop(number, body.window_bytes, again);
  const auto [found, is_new] = incoming_.emplace(number, &channel);
  if (!is_new && !(again && found->second == &channel)) tcp::bad_message("it opens channel number ", number, " twice");
}

void TcpLink::on_close(std::uint32_t number) {
  if (control_) tcp::bad_message("it ends a channel outside channel 0");
  static_cast<void>(incoming(number));
  incoming_.erase(number);
}

void TcpLink::on_control(std::span<const std::byte> message) {
  if (control_) tcp::bad_message("it sends a control message outside channel 0");
  take_control_on_loop({.type = tcp::Type::kControl}, message);
}

void TcpLink::on_bye() {
  if (control_) tcp::bad_message("it closes outside channel 0");
  take_control_on_loop({.type = tcp::Type::kBye}, {});
}

void TcpLink::take_control_on_loop(const tcp::Prefix& prefix, std::span<const std::byte> body) {
  if (prefix.type == tcp::Type::kBye) return take_bye_on_loop();
  // Over several rails a channel's number keeps its meaning, because its bytes may arrive once more.
  if (prefix.type == tcp::Type::kClose) return incoming(prefix.channel).finish_on_loop();
  if (state() == LinkState::kUp) observer().on_control(*this, body);
}

void TcpLink::on_heartbeat(std::uint64_t interval_ms) { patience_ = patience_for(interval_ms); }

void TcpLink::take_bye_on_loop() {
  const bool closing = locked([this] {
    peer_done_ = true;
    return said_bye_;
  });
  if (!closing) fail_on_loop(lost("closed its endpoint in good order"), true);
}

}  // namespace atl::transport
