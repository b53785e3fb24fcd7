// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/address.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMaxQueuedMessages = 1024;
constexpr int kReadsPerEvent = 16;  // then other links get their turn
constexpr std::chrono::milliseconds kRetryInterval{10};
constexpr std::chrono::seconds kPassAgainAfter{1};  // when the system had no descriptor for a slab

}  // namespace

ShmChannel& ShmLink::find_or_make(const ChannelId& id) {
  std::unique_ptr<ShmChannel>& channel = channels_[id];
  if (channel == nullptr) {
    channel = std::make_unique<ShmChannel>(*this, id, options().shm_window_bytes);
    if (peer_doorbell_) channel->set_peer_bell(peer_doorbell_.bell(id.bell));
    if (closed_early_.take(id)) {
      channel->mark_closed();
    } else {
      ++unclaimed_;
    }
  }
  return *channel;
}

Channel& ShmLink::channel(const ChannelId& id) {
  const std::lock_guard lock(mutex_);
  ShmChannel& channel = find_or_make(id);
  if (channel.is_closed()) refuse_reopening();
  if (!channel.is_claimed()) {
    if (attached_) {
      open(id);
      flush();
    } else {
      // A ring holds a descriptor until it is sent, so there are none while links connect.
      waiting_.push_back(id);
    }
    channel.claim();
    --unclaimed_;
  }
  return channel;
}

void ShmLink::close_channel(const ChannelId& id) {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(id);
  if (found == channels_.end()) return closed_early_.add(id);
  if (found->second->is_closed()) return;
  if (!found->second->is_claimed()) --unclaimed_;
  found->second->close();
}

bool ShmLink::send_control(std::span<const std::byte> message) {
  check_control(message);
  const std::lock_guard lock(mutex_);
  // For the peer this link may be up before it is here: a message may only be queued after the hello.
  if (!attached_ || stream_.descriptor() < 0 || said_bye_ || stream_.queued() >= kMaxQueuedMessages) return false;
  stream_.queue(shm::MessageType::kControl, message);
  flush();
  return true;
}

// Every accepted frame is already in memory that the peer maps, or its ring precedes this message in the stream.
bool ShmLink::send_control_after_frames(std::span<const std::byte> message) { return send_control(message); }

void ShmLink::open(const ChannelId& id) {
  Fd memory = channels_.at(id)->open();
  if (said_bye_) return;
  const shm::Open open{id.group, id.index, static_cast<std::uint32_t>(id.bell), options().shm_window_bytes};
  stream_.queue(shm::MessageType::kOpen, bytes_of(open), std::move(memory));
}

bool ShmLink::pass_slab(std::uint32_t slab) {
  std::string obstacle;
  {
    const std::lock_guard lock(mutex_);
    if (said_bye_ || stream_.descriptor() < 0 || passed_slabs_.contains(slab)) return true;
    if (Clock::now() < passes_again_at_) return false;
    try {
      Arena::SlabMemory passed = options().arena->memory_of(slab);
      stream_.queue(shm::MessageType::kSlab, bytes_of(shm::Slab{slab, passed.bytes}), std::move(passed.memory));
      passed_slabs_.insert(slab);
      flush();
      return true;
    } catch (const Error& error) {
      passes_again_at_ = Clock::now() + kPassAgainAfter;
      if (!std::exchange(has_warned_, true)) obstacle = error.what();
    }
  }
  if (!obstacle.empty()) log(LogLevel::kWarning, obstacle + ": tensors for " + peer_name() + " are copied");
  return false;
}

void ShmLink::flush() {
  stream_.flush();
  if (stream_.queued() > 0) loop().post([this] { flush_later_on_loop(); });
}

void ShmLink::attach_on_loop(ByteStream stream, bool /*initiator*/, const PeerAddress& /*authenticated*/) {
  try {
    peer_process_ = peer_process(stream.fd());
    patience_ = answer_patience(options());
    last_tick_ = Clock::now();
    loop().add_fd_on_loop(stream.fd(), EPOLLIN, [this](std::uint32_t events) { on_stream_event_on_loop(events); });
    const std::lock_guard lock(mutex_);
    stream_ = shm::Stream(stream.take_fd());
    attached_ = true;
    const shm::Hello hello{static_cast<std::uint64_t>(options().heartbeat.count())};
    stream_.queue(shm::MessageType::kHello, bytes_of(hello), duplicate(doorbell().memory()));
    for (const ChannelId& id : waiting_) {
      if (!channels_.at(id)->is_closed()) open(id);
    }
    waiting_.clear();
    flush();
  } catch (const Error& error) {
    return fail_on_loop(error);
  }
  observer().on_link_open(*this);
}

void ShmLink::flush_later_on_loop() {
  const std::lock_guard lock(mutex_);
  if (stream_.descriptor() < 0) return;
  stream_.flush();
  const bool waits_for_socket = stream_.queued() > 0 && stream_.socket_is_full();
  if (watches_output_ != waits_for_socket) {
    watches_output_ = waits_for_socket;
    loop().modify_fd_on_loop(stream_.descriptor(), watches_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  // The system limits the descriptors in flight, and no event reports when there is room again.
  if (stream_.queued() > 0 && !waits_for_socket)
    loop().add_timer_on_loop(kRetryInterval, false, [this] { flush_later_on_loop(); });
}

void ShmLink::on_stream_event_on_loop(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush_later_on_loop();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) return;
  guarded_on_loop([this] { receive_on_loop(); });
}

void ShmLink::receive_on_loop() {
  for (int reads = 0; reads < kReadsPerEvent && stream_.descriptor() >= 0; ++reads) {
    switch (stream_.receive()) {
      case shm::Stream::Received::kNothing: return;
      case shm::Stream::Received::kEnd: fail_on_loop(lost("died: end of file on its shared-memory link")); return;
      case shm::Stream::Received::kBytes: break;
    }
    while (stream_.descriptor() >= 0) {
      const std::optional<shm::Message> message = stream_.next();
      if (!message) break;
      handle_on_loop(*message);
    }
  }
}

void ShmLink::handle_on_loop(const shm::Message& message) {
  const bool is_hello = message.type == shm::MessageType::kHello;
  if (is_hello != (state() == LinkState::kConnecting)) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: a message of type ", static_cast<int>(message.type),
                " out of order");
  }
  switch (message.type) {
    case shm::MessageType::kHello: handle_hello_on_loop(message); break;
    case shm::MessageType::kOpen: handle_open_on_loop(message); break;
    case shm::MessageType::kSlab: handle_slab_on_loop(message); break;
    case shm::MessageType::kControl: observer().on_control(*this, message.body); break;
    case shm::MessageType::kBye: fail_on_loop(lost("closed its endpoint in good order"), true); break;
  }
}

void ShmLink::handle_hello_on_loop(const shm::Message& message) {
  patience_ = patience_for(shm::decode<shm::Hello>(message).heartbeat_ms);
  {
    const std::lock_guard lock(mutex_);
    peer_doorbell_ = RemoteDoorbell(stream_.take_memory());
    for (auto& [id, channel] : channels_) channel->set_peer_bell(peer_doorbell_.bell(id.bell));
  }
  seen_beats_ = peer_doorbell_.beats();
  silence_ = Clock::duration::zero();
  last_tick_ = Clock::now();
  mark_up_on_loop();
}

void ShmLink::handle_open_on_loop(const shm::Message& message) {
  const shm::Open open = shm::decode<shm::Open>(message);
  const Fd memory = stream_.take_memory();
  if (open.bell >= kBellCount || !is_valid_window(open.window_bytes)) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: invalid channel with bell ", open.bell, " and a window of ",
                open.window_bytes, " bytes");
  }
  auto ring = std::make_unique<RingReader>(memory, open.window_bytes, &peer_arena_);
  const ChannelId id{open.group, open.index, static_cast<Bell>(open.bell)};
  {
    const std::lock_guard lock(mutex_);
    if (!find_or_make(id).accept(std::move(ring)))
      throw Error(ErrorKind::kProtocol, "shared-memory link: a channel was opened twice");
    if (unclaimed_ > kMaxUnclaimedChannels) throw Error(ErrorKind::kProtocol, "shared-memory link: too many channels");
  }
  doorbell().ring_all();
}

void ShmLink::handle_slab_on_loop(const shm::Message& message) {
  const shm::Slab slab = shm::decode<shm::Slab>(message);
  if (slab.id > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorKind::kProtocol, "shared-memory link: a slab has the number ", slab.id);
  peer_arena_.add(static_cast<std::uint32_t>(slab.id), stream_.take_memory(), slab.bytes);
  doorbell().ring_all();
}

// The peer must send a hello on the stream that it accepted.
void ShmLink::on_connecting_tick_on_loop(Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    if (!attached_) return;
  }
  silence_ += counted_time(last_tick_, now, options());
  if (silence_ >= patience_) {
    fail_on_loop(lost("accepted a shared-memory link and has sent nothing on it for " +
                      one_decimal(std::chrono::duration<double>(silence_).count()) +
                      " s: stopped, or its machine hangs"));
  }
}

void ShmLink::on_tick_on_loop(Clock::time_point now) {
  doorbell().beat();
  peer_arena_.drop_retired();
  silence_ += counted_time(last_tick_, now, options());
  const std::uint64_t beats = peer_doorbell_.beats();
  if (beats != std::exchange(seen_beats_, beats)) silence_ = Clock::duration::zero();
  if (silence_ >= patience_) {
    fail_on_loop(lost("has been silent for " + one_decimal(std::chrono::duration<double>(silence_).count()) +
                      " s: stopped, or its machine hangs"));
  }
}

std::string ShmLink::label() const {
  return peer_name() + (peer_process_ > 0 ? " (pid " + std::to_string(peer_process_) + ")" : "");
}

// The end of the stream does not prove it: a living peer may have closed its links while a thread of it still writes.
// If the number belongs to another process by now, or the system does not answer, the peer counts as alive.
bool ShmLink::has_peer_ended() const noexcept {
  if (peer_process_ <= 0) return false;
  const auto process = static_cast<int>(::syscall(SYS_pidfd_open, peer_process_, 0));
  if (process < 0) return errno == ESRCH || errno == EINVAL || errno == ENOENT;  // the last two: a process group's
  pollfd ended{process, POLLIN, 0};
  const bool has_ended = ::poll(&ended, 1, 0) == 1;
  ::close(process);
  return has_ended;
}

void ShmLink::begin_shutdown_on_loop() {
  const std::lock_guard lock(mutex_);
  if (!attached_ || said_bye_ || stream_.descriptor() < 0) return;
  mark_leaving_on_loop();
  stream_.queue(shm::MessageType::kBye, {});
  said_bye_ = true;
  flush();
}

bool ShmLink::drained_on_loop() const {
  const std::lock_guard lock(mutex_);
  return stream_.queued() == 0;
}

void ShmLink::teardown_on_loop() noexcept {
  // Before the memory is unmapped, this process's waiters and the observer learn of the end.
  loop().post([slabs = peer_arena_.take_all()] {});
  const std::lock_guard lock(mutex_);
  if (stream_.descriptor() >= 0) loop().remove_fd_on_loop(stream_.descriptor());
  stream_.close();
  waiting_.clear();
}

ShmChannel::ShmChannel(ShmLink& link, const ChannelId& id, std::size_t window_bytes)
    : ChannelBase(link, id, window_bytes), link_(link) {}

bool ShmChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!may_send(header, payload)) return false;
  if (!guarded([&] { return writer_->try_write(header, payload); })) return false;
  ring_peer();
  return true;
}

bool ShmChannel::can_lend() const noexcept { return link_.has_arena(); }

std::optional<Payload> ShmChannel::try_lend(const FrameHeader& header, std::span<const std::byte> payload,
                                            const ArenaPlace& place) {
  if (!may_send(header, payload)) return std::nullopt;
  if (header.where != Payload::kThere && passed_slab_ != place.slab) {
    if (!link_.pass_slab(place.slab)) {
      FrameHeader copied = header;
      copied.where = Payload::kHere;
      return try_send(copied, payload) ? std::optional(copied.where) : std::nullopt;
    }
    passed_slab_ = place.slab;
  }
  if (!guarded([&] { return writer_->try_lend(header, place); })) return std::nullopt;
  ring_peer();
  return header.where;
}

// While the link connects, its loop may be making the writer; nothing has been lent by then.
bool ShmChannel::has_writer() const noexcept { return link_.state() != LinkState::kConnecting && writer_ != nullptr; }

bool ShmChannel::has_returned() {
  return !has_writer() || guarded([&] { return writer_->has_returned(); });
}

void ShmChannel::revoke() noexcept {
  if (has_writer()) writer_->revoke();
}

std::optional<ArenaRange> ShmChannel::written_range() const noexcept {
  if (!has_writer()) return std::nullopt;
  auto range = writer_->written_range();
  if (range && link_.has_peer_ended()) range.reset();
  return range;
}

const Frame* ShmChannel::front() {
  return front_of([this]() -> const Frame* {
    RingReader* const reader = reader_.load(std::memory_order_acquire);
    return reader == nullptr ? nullptr : reader->front();
  });
}

bool ShmChannel::is_intact() const noexcept { return reader_.load(std::memory_order_relaxed)->is_intact(); }

std::byte* ShmChannel::begin_write() noexcept { return reader_.load(std::memory_order_relaxed)->begin_write(); }

void ShmChannel::end_write() noexcept { reader_.load(std::memory_order_relaxed)->end_write(); }

void ShmChannel::pop() {
  reader_.load(std::memory_order_relaxed)->pop();
  ring_peer();
}

void ShmChannel::ring_peer() noexcept {
  if (BellWords* const bell = peer_bell_.load(std::memory_order_acquire)) ring(*bell);
}

Fd ShmChannel::open() {
  writer_ = std::make_unique<RingWriter>(window_bytes_);
  return writer_->take_memory();
}

bool ShmChannel::accept(std::unique_ptr<RingReader> ring) {
  if (reader_owner_ != nullptr) return false;
  if (is_closed()) {
    ring->close();
    ring_peer();
    return true;
  }
  reader_owner_ = std::move(ring);
  reader_.store(reader_owner_.get(), std::memory_order_release);
  return true;
}

void ShmChannel::close() noexcept {
  mark_closed();
  reader_.store(nullptr, std::memory_order_release);
  if (reader_owner_ != nullptr) reader_owner_->close();
  ring_peer();
  reader_owner_.reset();
  writer_.reset();
}

}  // namespace atl::transport
