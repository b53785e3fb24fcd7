// SPDX-License-Identifier: Apache-2.0
// Frames of a UcxLink: its channels, and how the loop gives UCX what they accepted and puts what arrives into their
// rings.
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/ucx/link.h"

namespace atl::transport {

namespace {

constexpr int kTurns = 64;           // then other links get theirs
constexpr int kMaxIdleDrives = 100;  // half a millisecond, or little more
constexpr std::chrono::milliseconds kPause{1};
constexpr std::chrono::milliseconds kStreamReportsWithin{500};

}  // namespace

void UcxLink::wake(UcxChannel& channel) {
  if (channel.note_waiting()) return;
  {
    const std::lock_guard lock(wake_mutex_);
    woken_.push_back(&channel);
  }
  signal();
}

void UcxLink::signal() noexcept {
  if (signalled_.exchange(true, std::memory_order_acq_rel)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void UcxLink::collect_woken_on_loop() {
  // In this order: a thread that comes after the exchange signals again.
  signalled_.exchange(false, std::memory_order_acq_rel);
  batch_.clear();
  {
    const std::lock_guard lock(wake_mutex_);
    batch_.assign(woken_.begin(), woken_.end());
    woken_.clear();
  }
  for (UcxChannel* const channel : batch_) {
    channel->clear_waiting();
    activate_on_loop(*channel);
  }
}

void UcxLink::activate_on_loop(UcxChannel& channel) {
  if (std::exchange(channel.is_active, true)) return;
  active_.push_back(&channel);
}

void UcxLink::drive_on_loop() {
  if (!worker_) return;
  int turns = 0;
  guarded_on_loop([&] {
    collect_woken_on_loop();
    while (turns < kTurns && turn_on_loop()) ++turns;
    open_gates_on_loop();
  });
  ring_noted_on_loop();
  if (!worker_) return;  // a control message's receiver has ended the link
  if (phase_ == Phase::kAgreeing && agreement_->is_probing() && !agreement_->has_voted()) {
    if (!probe_has_come_ && worker_->trouble()) agreement_->vote(worker_->trouble()->what());
    if (probe_has_come_ || agreement_->has_voted()) {
      signal();
      return guarded_on_loop([this] { step_agreement_on_loop(); });
    }
  }
  if (!worker_->trouble()) guarded_on_loop([&] { rest_on_loop(turns != 0, turns == kTurns); });
  if (worker_ && worker_->trouble()) look_at_trouble_on_loop();
}

/// Waits for UCX's next event. When a peer that took nothing, such as a stopped one, has room again, there is no event:
/// then the worker is checked again, at once for a while and after that by a timer.
void UcxLink::rest_on_loop(bool moved, bool more) {
  if (moved) idle_drives_ = 0;
  if (more) return signal();
  if (worker_->arm()) {
    idle_drives_ = 0;
    return hear_worker_on_loop(true);
  }
  if (idle_drives_ < kMaxIdleDrives) {
    ++idle_drives_;
    return signal();
  }
  // UCX clears an event only when it can be armed: an old one would wake the loop forever.
  hear_worker_on_loop(false);
  if (pause_) return;
  pause_ = loop().add_timer_on_loop(kPause, false, [this] {
    pause_.reset();
    drive_on_loop();
  });
}

void UcxLink::hear_worker_on_loop(bool hears) {
  if (!watches_worker_ || hears_worker_ == hears) return;
  loop().modify_fd_on_loop(worker_->descriptor(), hears ? EPOLLIN : 0U);
  hears_worker_ = hears;
}

/// UCX's report of a lost peer is vague. The stream soon reports whether it died, closed in good order or is silent; if
/// it does not, the link ends with UCX's error.
void UcxLink::look_at_trouble_on_loop() {
  const auto now = Clock::now();
  if (!broken_since_) {
    broken_since_ = now;
    unwatch_worker_on_loop();
  }
  const bool stream_may_report = worker_->trouble()->kind() == ErrorKind::kPeerLost;
  if (phase_ != Phase::kUcx || (stream_may_report && now - *broken_since_ < kStreamReportsWithin)) return;
  fail_on_loop(named(*worker_->trouble()));
}

/// Returns whether anything moved.
bool UcxLink::turn_on_loop() {
  if (worker_->trouble()) return false;
  if (phase_ == Phase::kUcx) pump_on_loop();
  return worker_->progress();
}

/// Channels take turns, a frame each, so that a large message does not delay the others.
void UcxLink::pump_on_loop() {
  bool any = !active_.empty();
  while (any) {
    any = false;
    for (UcxChannel* const channel : active_) any |= feed_on_loop(*channel);
  }
  std::erase_if(active_, [this](UcxChannel* channel) {
    channel->is_active = has_more_on_loop(*channel);
    return !channel->is_active;
  });
}

bool UcxLink::has_more_on_loop(UcxChannel& channel) const noexcept {
  // A credit is sent at once, or when the transfer of a frame ends.
  return (channel.sending() != nullptr && channel.sending()->has_next()) || channel.owes_credit_on_loop();
}

bool UcxLink::feed_on_loop(UcxChannel& channel) {
  bool fed = false;
  const auto prepare = [&](UcxChannel* of, std::uint64_t window_bytes, std::uint64_t position) {
    Sending* const sending = free_sendings_.back();
    free_sendings_.pop_back();
    sending->channel = of;
    sending->note = ucx::note_of(agreement_->peer_secret(), channel.id(), window_bytes, position);
    return sending;
  };
  if (!free_sendings_.empty() && channel.owes_credit_on_loop()) {
    Sending* const sending = prepare(nullptr, channel.receiving().window_bytes(), channel.take_credit_on_loop());
    worker_->send(ucx::MessageKind::kCredit, bytes_of(sending->note), {}, *sending);
    fed = true;
  }
  ucx::SendRing* const ring = channel.sending();
  if (free_sendings_.empty() || ring == nullptr) return fed;
  const auto piece = ring->next();
  if (!piece) return fed;
  Sending* const sending = prepare(&channel, channel.window_bytes(), piece->position);
  const ucx::Place from{const_cast<std::byte*>(piece->bytes.data()), piece->bytes.size(), MemoryKind::kHost,
                        registered(channel.send_memory, ring->memory())};
  worker_->send(ucx::MessageKind::kFrame, bytes_of(sending->note), from, *sending);
  return true;
}

/// Registers the whole ring once with devices that would otherwise register each frame.
const ucx::Registration* UcxLink::registered(std::unique_ptr<ucx::Registration>& memory, std::span<std::byte> bytes) {
  return context_->has_rdma() ? registrar_.get(memory, bytes) : nullptr;
}

void UcxLink::note_refusal_on_loop(const Error& refusal) {
  const std::string why = refusal.what();
  log(LogLevel::kWarning, "frames to and from " + peer_name() + " are staged in memory of UCX's own; " + why);
  const std::lock_guard lock(channels_mutex_);
  unregistered_ = why;
}

void UcxLink::Sending::finish(const Error* problem, std::size_t /*bytes*/) {
  link->free_sendings_.push_back(this);
  if (problem != nullptr || channel == nullptr) return;
  channel->sending()->done(note.position);
  link->note_bell_on_loop(channel->id().bell);  // wakes a thread that waits for this space
  if (channel->is_closed() && channel->sending()->is_done()) link->free_soon(*channel);
}

/// Frees it outside UCX's callback, during which UCX still holds the registration.
void UcxLink::free_soon(UcxChannel& channel) {
  loop().post([this, &channel] { free_closed_on_loop(channel); });
}

/// Frees what no transfer of a closed channel needs any more.
void UcxLink::free_closed_on_loop(UcxChannel& channel) noexcept {
  ucx::SendRing* const ring = channel.sending();
  if (ring != nullptr && (ring->is_done() || !worker_)) {
    channel.send_memory.reset();
    ring->free_memory();
  }
  if (channel.receiving().is_freed_on_loop()) channel.receive_memory.reset();
}

void UcxLink::on_message(ucx::MessageKind kind, std::span<const std::byte> note_bytes, ucx::Incoming& message) {
  ucx::Note note;
  const bool has_size = note_bytes.size() == sizeof note;
  if (has_size) note = read_as<ucx::Note>(note_bytes);
  if (!has_size || note.secret != secret_) {
    if (!std::exchange(warned_of_stranger_, true)) {
      log(LogLevel::kWarning, "a message through UCX that is not from " + peer_name() + " was dropped");
    }
    return;
  }
  if (kind == ucx::MessageKind::kProbe) {
    probe_has_come_ = true;
    return;
  }
  if (note.bell >= kBellCount || note.zero != 0 || note.window_log2 >= 64) {
    throw Error(ErrorKind::kProtocol, "it names a channel with bell ", note.bell, " and a window of 2^",
                note.window_log2, " bytes");
  }
  kind == ucx::MessageKind::kFrame ? on_frame(note, message) : on_credit(note);
}

void UcxLink::on_credit(const ucx::Note& note) {
  UcxChannel* const channel = find(ucx::channel_of(note));
  if (channel == nullptr || channel->sending() == nullptr) {
    throw Error(ErrorKind::kProtocol, "it gives credit for a channel that was never opened");
  }
  channel->sending()->release(note.position);
  note_bell_on_loop(static_cast<Bell>(note.bell));
}

void UcxLink::on_frame(const ucx::Note& note, ucx::Incoming& message) {
  UcxChannel& channel = find_or_make(ucx::channel_of(note), false);
  ucx::ReceiveRing& ring = channel.receiving();
  if (channel.is_closed()) ring.close_on_loop();  // perhaps before the peer opened it
  ring.open_on_loop(std::uint64_t{1} << note.window_log2);
  std::byte* const to = ring.begin_on_loop(note.position, message.bytes());
  if (to == nullptr) return activate_on_loop(channel);  // dropped; the credit is returned
  if (free_arrivals_.empty()) {
    ring.abandon_on_loop();
    throw Error(ErrorKind::kProtocol, "it sends more frames at once than the protocol allows");
  }
  Arrival* const arrival = free_arrivals_.back();
  free_arrivals_.pop_back();
  arrival->channel = &channel;
  arrival->position = note.position;
  arrival->bytes = message.bytes();
  message.read({to, message.bytes(), MemoryKind::kHost, registered(channel.receive_memory, ring.memory())}, *arrival);
}

void UcxLink::Arrival::finish(const Error* problem, std::size_t /*got*/) {
  link->free_arrivals_.push_back(this);
  ucx::ReceiveRing& ring = channel->receiving();
  if (problem != nullptr) return ring.abandon_on_loop();
  if (ring.finish_on_loop(position, bytes)) link->note_bell_on_loop(channel->id().bell);
  if (!channel->is_closed()) return;
  link->activate_on_loop(*channel);
  if (ring.is_freed_on_loop()) link->free_soon(*channel);
}

UcxChannel::UcxChannel(UcxLink& link, const ChannelId& id, std::size_t window_bytes)
    : ChannelBase(link, id, window_bytes), link_(link) {}

void UcxChannel::open() {
  sending_ = std::make_unique<ucx::SendRing>(window_bytes_);
  sender_.store(sending_.get(), std::memory_order_release);
}

bool UcxChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!may_send(header, payload)) return false;
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->try_send(header, payload);
  if (link_.is_leaving() || !sending_->try_write(header, payload)) return false;
  link_.wake(*this);
  return true;
}

const Frame* UcxChannel::front() {
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->front();
  // Frames may arrive before this end is up, but it cannot take yet what they announce, such as direct messages.
  return front_of([this] { return link_.state() == LinkState::kConnecting ? nullptr : receiving_.front(); });
}

void UcxChannel::pop() {
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->pop();
  receiving_.pop();
  const std::uint64_t popped = receiving_.popped();
  if (popped - announced_ < receiving_.window_bytes() / 4) return;
  announced_ = popped;
  link_.wake(*this);
}

bool UcxChannel::owes_credit_on_loop() const noexcept {
  const std::uint64_t window = receiving_.window_bytes();
  const std::uint64_t untold = receiving_.popped() - told_;
  // A closed channel returns all of it: then the peer sends no more marks for the channel (send_marks).
  return window != 0 && (is_closed() ? untold != 0 : untold >= window / 4);
}

}  // namespace atl::transport
