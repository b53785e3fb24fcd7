// SPDX-License-Identifier: Apache-2.0
// Control messages of a UcxLink and its end. The stream and UCX are two paths: a message on the stream that must not
// overtake frames states the position that each channel must reach first, and waits for it at the receiver.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "atoll/transport/ucx/link.h"

namespace atl::transport {

namespace {

using ucx::ControlKind;

constexpr std::size_t kMaxGatedBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxMarks = 65536;

}  // namespace

bool UcxLink::send_control(std::span<const std::byte> message) {
  check_control(message);
  if (state() != LinkState::kUp) return false;
  return over_stream_ ? inner_.send_control(message) : send_typed(ControlKind::kUser, message, false);
}

bool UcxLink::send_control_after_frames(std::span<const std::byte> message) {
  check_control(message);
  if (state() != LinkState::kUp) return false;
  if (over_stream_) return inner_.send_control_after_frames(message);
  return send_marks() && send_typed(ControlKind::kAfterFrames, message, true);
}

bool UcxLink::send_typed(ControlKind kind, std::span<const std::byte> message, bool after_frames) {
  std::array<std::byte, kMaxControlBytes + 1> typed;
  typed[0] = static_cast<std::byte>(kind);
  if (!message.empty()) std::memcpy(typed.data() + 1, message.data(), message.size());
  const auto whole = std::span<const std::byte>(typed).first(message.size() + 1);
  return after_frames ? inner_.send_control_after_frames(whole) : inner_.send_control(whole);
}

/// Sends the position of each channel with frames that the peer may not have yet. If the queue is full before the
/// message follows, these marks make the next such message wait, which is right: their frames were accepted before it,
/// too.
bool UcxLink::send_marks() {
  const std::lock_guard lock(channels_mutex_);
  for (const auto& [id, channel] : channels_) {
    if (!channel->is_claimed() || channel->all_released()) continue;
    const auto mark = ucx::note_of(0, id, channel->window_bytes(), channel->written());
    if (!send_typed(ControlKind::kMark, bytes_of(mark), true)) return false;
  }
  return true;
}

void UcxLink::on_control(Link& /*inner*/, std::span<const std::byte> message) {
  if (phase_ != Phase::kUcx) {
    if (state() == LinkState::kUp) observer().on_control(*this, message);
    return;
  }
  try {
    if (message.empty()) throw Error(ErrorKind::kProtocol, "an empty control message");
    const auto kind = static_cast<ControlKind>(message[0]);
    const auto body = message.subspan(1);
    switch (kind) {
      case ControlKind::kUser:
        if (state() == LinkState::kUp) observer().on_control(*this, body);
        return;
      case ControlKind::kAllReceived: all_received_ = true; return continue_leaving_on_loop();
      case ControlKind::kMark:
        if (body.size() != sizeof(ucx::Note) || marks_.size() >= kMaxMarks) {
          throw Error(ErrorKind::kProtocol, "an invalid mark of ", body.size(), " bytes");
        }
        return marks_.push_back(read_as<ucx::Note>(body));
      case ControlKind::kAfterFrames:
      case ControlKind::kLeaving:
        peer_awaits_answer_ = peer_awaits_answer_ || kind == ControlKind::kLeaving;
        gated_.push_back({kind, {body.begin(), body.end()}, std::exchange(marks_, {})});
        gated_bytes_ += gated_.back().bytes();  // an empty one counts, too
        if (gated_bytes_ > kMaxGatedBytes) {
          throw Error(ErrorKind::kProtocol, "control messages wait for frames that do not arrive");
        }
        return drive_on_loop();
    }
    throw Error(ErrorKind::kProtocol, "a control message of unknown type ", static_cast<int>(kind));
  } catch (const Error& error) {
    fail_on_loop(named(error));
  }
}

bool UcxLink::is_open_on_loop(const Gated& gated) {
  return std::all_of(gated.marks.begin(), gated.marks.end(), [this](const ucx::Note& mark) {
    UcxChannel* const channel = mark.bell < kBellCount ? find(ucx::channel_of(mark)) : nullptr;
    return channel != nullptr && channel->receiving().received() >= mark.position;
  });
}

void UcxLink::open_gates_on_loop() {
  while (phase_ == Phase::kUcx && !gated_.empty() && is_open_on_loop(gated_.front())) {
    const Gated next = std::move(gated_.front());
    gated_.pop_front();
    gated_bytes_ -= next.bytes();
    pass_on_loop(next);
  }
}

void UcxLink::pass_on_loop(const Gated& gated) {
  if (gated.kind == ControlKind::kAfterFrames) {
    // First make the frames before it visible to the threads that it may wake.
    ring_noted_on_loop();
    if (state() == LinkState::kUp) observer().on_control(*this, gated.message);
    return;
  }
  owes_answer_ = true;
  continue_leaving_on_loop();
}

/// Continues a shutdown in good order, whose steps may have to wait because a queue is full.
void UcxLink::continue_leaving_on_loop() {
  if (phase_ != Phase::kUcx) return;
  if (is_leaving() && !told_leaving_) told_leaving_ = send_marks() && send_typed(ControlKind::kLeaving, {}, true);
  // After this side's own kLeaving: the answer permits the peer to say goodbye, after which it answers nothing.
  const bool may_answer = owes_answer_ && (told_leaving_ || !is_leaving());
  if (may_answer && send_typed(ControlKind::kAllReceived, {}, true)) owes_answer_ = peer_awaits_answer_ = false;
  if (is_leaving() && all_received_ && !peer_awaits_answer_) inner_.begin_shutdown_on_loop();
}

void UcxLink::begin_shutdown_on_loop() {
  shutdown_requested_ = true;
  if (phase_ == Phase::kStream) return inner_.begin_shutdown_on_loop();
  if (phase_ != Phase::kUcx || is_leaving()) return;
  mark_leaving_on_loop();
  leaving_.store(true, std::memory_order_release);  // nothing is accepted any more
  continue_leaving_on_loop();
  drive_on_loop();
}

bool UcxLink::drained_on_loop() const {
  switch (phase_) {
    case Phase::kAgreeing: return false;
    case Phase::kUcx: return !is_leaving() || (all_received_ && inner_.drained_on_loop());
    case Phase::kStream: return inner_.drained_on_loop();
    case Phase::kWaiting:
    case Phase::kEnded: break;
  }
  return true;
}

void UcxLink::on_link_failed(Link& /*inner*/, const Error& error, bool closed_in_order) {
  // First take what the peer sent before it ended.
  if (phase_ == Phase::kUcx) drive_on_loop();
  fail_on_loop(error, closed_in_order);
}

}  // namespace atl::transport
