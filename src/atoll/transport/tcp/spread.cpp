// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/spread.h"

#include <algorithm>
#include <limits>

namespace atl::transport::tcp {

Spread::Spread(const std::vector<std::unique_ptr<Rail>>& rails) : rails_(rails) {
  control_stream_.open(0, {.window_bytes = kControlWindow});
}

void Spread::push_frame(SendStream& stream, std::uint64_t position, std::size_t bytes, Time now) {
  frames_.push_back(pool_.take(
      {.stream = &stream, .position = position, .bytes = static_cast<std::uint32_t>(bytes), .serial = ++serial_}));
  waiting_bytes_ += bytes;
  pump(now);
}

bool Spread::push_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now) {
  if (!enter_control(type, channel, body, must)) return false;
  pump(now);
  return true;
}

bool Spread::push_after_frames(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now,
                               SendStream* finished) {
  const std::size_t bytes = whole_units(sizeof(Prefix) + body.size());
  if (!must && after_frames_bytes_ + bytes > kMaxAfterFramesBytes) return false;
  is_closing_ = is_closing_ || type == Type::kBye;
  after_frames_.push_back({serial_, type, channel, {body.begin(), body.end()}, finished});
  after_frames_bytes_ += bytes;
  pump(now);
  return true;
}

/// Puts a message at the end of the control stream, one segment each.
bool Spread::enter_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must) {
  const std::uint64_t bytes = sizeof(Prefix) + body.size();
  const std::uint64_t limit = must ? kControlWindow : kMaxControl;
  if (control_sent_ + whole_units(bytes) - control_released_ > limit) return false;
  Segment* const segment = pool_.take({.stream = &control_stream_,
                                       .position = control_sent_,
                                       .bytes = static_cast<std::uint32_t>(bytes),
                                       .serial = ++serial_});
  if (segment == nullptr) return false;
  const Prefix prefix{.type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size())};
  control_stream_.write(control_sent_, {bytes_of(prefix), body});
  control_sent_ += whole_units(bytes);
  control_.push_back(segment);
  return true;
}

void Spread::control_released(std::uint64_t total) {
  if (total > control_sent_) bad_message("credit for ", total, " bytes of control, which were never sent");
  control_released_ = std::max(control_released_, total);
}

void Spread::open(Rail& rail, const RailScheduler::Expected& expected, Time now) {
  scheduler_.open(rail.index(), expected, now);
  pump(now);
}

std::uint64_t Spread::close(Rail& rail, Time now) {
  scheduler_.close(rail.index());
  SegmentList unfinished;
  rail.close(&unfinished);
  std::uint64_t bytes = 0;
  while (!unfinished.empty()) {
    Segment* const segment = unfinished.pop_front();
    if (segment->stream == nullptr) {
      pool_.give_back(segment);
    } else if (segment->stream == &control_stream_) {
      control_.push_back(segment);
    } else {
      again_.push_back(segment);
      waiting_bytes_ += segment->bytes;
      bytes += segment->bytes;
    }
  }
  pump(now);
  return bytes;
}

void Spread::acknowledged(Rail& rail, std::uint64_t total, Time now) {
  rail.acknowledge(total);
  std::size_t bytes = 0;
  while (Segment* const segment = rail.take_acknowledged()) {
    bytes += segment->message_bytes;
    pool_.give_back(segment);
  }
  if (bytes != 0) scheduler_.acknowledged(rail.index(), bytes, now);
  pump(now);
}

unsigned Spread::ready() const noexcept {
  unsigned mask = 0;
  for (const auto& rail : rails_) {
    if (rail->is_ready()) mask |= 1U << rail->index();
  }
  return mask;
}

Rail* Spread::nearest() const noexcept {
  unsigned mask = 0;
  for (const auto& rail : rails_) {
    if (rail->can_write()) mask |= 1U << rail->index();
  }
  const auto found = scheduler_.nearest(mask);
  return found ? rails_[*found].get() : nullptr;
}

void Spread::pump(Time now) {
  release_after_frames();
  while (send_next(now)) {
  }
  request_last_acks(now);
  request_acks_for_rates(now);
}

/// Gives one segment to one rail; returns false when nothing waits or no rail takes it.
bool Spread::send_next(Time now) {
  if (control_.empty() && waiting_bytes_ == 0) return false;
  const unsigned takers = ready();
  if (!control_.empty()) {
    const auto rail = scheduler_.nearest(takers);
    if (!rail) return false;
    if (request_round_trip(*rails_[*rail], now)) return true;
    write(*rails_[*rail], control_.pop_front(), now);
    return true;
  }
  const auto turn = scheduler_.next(waiting_bytes_, takers);
  if (!turn) return false;
  if (request_round_trip(*rails_[turn->rail], now)) return true;
  // What is sent again keeps its bounds, by which the receiver recognises what it has.
  Segment* const segment = again_.empty() ? cut_front(turn->bytes) : again_.pop_front();
  if (segment == nullptr) return false;
  waiting_bytes_ -= segment->bytes;
  write(*rails_[turn->rail], segment, now);
  return true;
}

/// Returns the first `bytes` of the first frame, or all of it; nullptr while no segment is free.
Segment* Spread::cut_front(std::size_t bytes) noexcept {
  Segment* const frame = frames_.front();
  // A small rest is not worth a message of its own.
  if (frame->bytes <= std::min(bytes + bytes / 4, kMaxSegment)) return frames_.pop_front();
  Segment part = *frame;
  part.bytes = static_cast<std::uint32_t>(bytes);
  Segment* const cut = pool_.take(part);
  if (cut == nullptr) return nullptr;
  frame->position += bytes;
  frame->bytes -= static_cast<std::uint32_t>(bytes);
  return cut;
}

void Spread::write(Rail& rail, Segment* segment, Time now) {
  rail.write_segment(segment);
  scheduler_.sent(rail.index(), segment->message_bytes, now);
}

void Spread::write_probe(Rail& rail, std::size_t bytes) {
  Segment* const probe = pool_.take({.bytes = static_cast<std::uint32_t>(bytes)});
  if (probe != nullptr) rail.write_segment(probe);
}

/// Counts the request as sent only if there was a segment for it: what was not written is never acknowledged.
void Spread::write_ack_request(Rail& rail, Time now) {
  if (pool_.free_count() == 0) return;
  write_probe(rail, 0);
  scheduler_.ack_requested(rail.index(), sizeof(Prefix), now);
}

void Spread::probe(Time now) {
  if (pool_.free_count() < kReserve / 2) return;
  if (const auto turn = scheduler_.probe(now, ready())) write_probe(*rails_[turn->rail], turn->bytes);
}

void Spread::request_ack(Rail& rail, Time now) {
  if (rail.is_ready() && rail.on_their_way().empty()) write_ack_request(rail, now);
}

void Spread::request_acks_on_idle_rails(Time now) {
  for (const auto& rail : rails_) request_ack(*rail, now);
}

void Spread::release_after_frames() {
  while (!after_frames_.empty() && oldest_serial() > after_frames_.front().serial) {
    const AfterFrames& front = after_frames_.front();
    if (!enter_control(front.type, front.channel, front.body, true)) return;
    if (front.finished != nullptr) front.finished->close();
    after_frames_bytes_ -= whole_units(sizeof(Prefix) + front.body.size());
    after_frames_.pop_front();
  }
}

/// Returns the oldest serial of what has not arrived.
std::uint64_t Spread::oldest_serial() const noexcept {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  const auto look = [&](const SegmentList& list) {
    for (const Segment* each = list.front(); each != nullptr; each = each->next) {
      if (each->stream != nullptr) oldest = std::min(oldest, each->serial);
    }
  };
  for (const SegmentList* list : {&control_, &again_, &frames_}) look(*list);
  for (const auto& rail : rails_) look(rail->on_their_way());
  return oldest;
}

/// Few bytes are acknowledged late; messages that wait for frames, and the end, need it at once.
void Spread::request_last_acks(Time now) {
  if ((after_frames_.empty() && !is_closing_) || !control_.empty() || waiting_bytes_ != 0) return;
  for (const auto& rail : rails_) {
    const Segment* const last = rail->on_their_way().back();
    if (last != nullptr && last->stream != nullptr && rail->is_ready()) write_ack_request(*rail, now);
  }
}

/// Returns whether a request was sent.
bool Spread::request_round_trip(Rail& rail, Time now) {
  const bool wanted = pool_.free_count() != 0 && scheduler_.wants_round_trip(rail.index(), now);
  if (wanted) write_ack_request(rail, now);
  return wanted;
}

/// Bytes too few to keep a rail busy reveal its rate only if they are acknowledged at once.
void Spread::request_acks_for_rates(Time now) {
  for (const auto& rail : rails_) {
    if (scheduler_.wants_ack_request(rail->index(), now) && rail->is_ready()) write_ack_request(*rail, now);
  }
}

}  // namespace atl::transport::tcp
