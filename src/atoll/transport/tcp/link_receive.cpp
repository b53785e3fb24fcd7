// SPDX-License-Identifier: Apache-2.0
// The receiving half of TcpLink: the loop thread alone.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "atoll/transport/tcp/link.h"

namespace atl::transport {

namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
constexpr std::size_t kBehindLargeFrame = std::size_t{4} << 10;
constexpr std::size_t kLargeFrame = std::size_t{16} << 10;
constexpr std::size_t kLeastToWakeFor = std::size_t{64} << 10;  // of a frame that has more to come
constexpr int kReadsPerTurn = 32;                               // then other links have their turn

/// One per loop thread: everything read into it is consumed before the next read.
std::span<std::byte> scratch() {
  thread_local std::unique_ptr<std::byte[]> memory;
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  return {memory.get(), kScratchBytes};
}

}  // namespace

void TcpLink::on_event_on_loop(std::uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hangup_ = true;
  if ((events & EPOLLOUT) != 0) flush_on_loop();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) receive_on_loop();
}

void TcpLink::receive_on_loop() {
  if (receive_turn_on_loop()) loop().post([this] { receive_on_loop(); });
}

/// Reads what is there, up to a limit. Returns whether there may be more.
bool TcpLink::receive_turn_on_loop() {
  int error = 0;
  bool ended = false;
  bool more = true;
  try {
    for (int reads = 0; reads < kReadsPerTurn && more && state() == LinkState::kUp; ++reads) {
      bool drained = false;
      const auto got = read_on_loop(&drained);
      error = got < 0 ? errno : 0;
      ended = got == 0 || (got < 0 && error != EAGAIN);
      // After a short read a new edge announces more, except for an end that was announced already.
      more = got > 0 && (!drained || hangup_);
      for (std::size_t bell = 0; bell < kBellCount; ++bell) {
        if (std::exchange(dirty_[bell], false)) ring(doorbell().bell(static_cast<Bell>(bell)));
      }
    }
  } catch (const Error& failure) {
    fail_on_loop(named(failure));
  } catch (const std::exception& failure) {
    fail_on_loop(named(Error(ErrorKind::kInternal, failure.what())));
  }
  if (ended) end_of_stream_on_loop(error);
  if (!more) sleep_through_frame_on_loop();
  return more && state() == LinkState::kUp;
}

/// Nothing of a frame is of use before its last byte, so that the kernel need not wake this thread for each packet of it.
void TcpLink::sleep_through_frame_on_loop() {
  const std::size_t left = parser_.direct().size();
  const int wanted = left < kLargeFrame ? 1 : static_cast<int>(std::min(left, kLeastToWakeFor));
  if (wanted == least_to_wake_for_ || state() != LinkState::kUp) return;
  least_to_wake_for_ = wanted;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted,
               sizeof wanted);  // raises an edge itself when there is as much
}

/// Reads once, straight into the frame under way where there is one. Returns what readv does.
std::ptrdiff_t TcpLink::read_on_loop(bool* drained) {
  const auto direct = parser_.direct();
  // Behind a large frame little is read, because that is copied once more.
  const auto behind = scratch().first(direct.size() >= kLargeFrame ? kBehindLargeFrame : kScratchBytes);
  const std::array<iovec, 2> pieces{iovec{direct.data(), direct.size()}, iovec{behind.data(), behind.size()}};
  std::ptrdiff_t got = 0;
  do {
    got = ::readv(fd_.get(), pieces.data(), static_cast<int>(pieces.size()));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return got;
  const auto count = static_cast<std::size_t>(got);
  bytes_in_ += count;
  *drained = count < direct.size() + behind.size();
  const std::size_t into_frame = std::min(count, direct.size());
  if (into_frame != 0) parser_.advance_direct(into_frame);
  parser_.consume(behind.first(count - into_frame));
  return got;
}

void TcpLink::end_of_stream_on_loop(int error) {
  {
    const std::lock_guard lock(mutex_);
    peer_done_ = true;
    if (said_bye_) return;  // both sides are closing: this is how it ends
  }
  if (error == 0) return fail_on_loop(lost("died: end of file"));
  fail_on_loop(lost(with_errno(error == ETIMEDOUT ? "is unreachable" : "died", error)));
}

TcpChannel& TcpLink::incoming(std::uint32_t number) const {
  const auto found = incoming_.find(number);
  if (found == incoming_.end()) {
    throw Error(ErrorKind::kProtocol, "it speaks of channel number " + std::to_string(number) + ", which is not open");
  }
  return *found->second;
}

std::byte* TcpLink::on_data(std::uint32_t number, std::uint32_t payload_bytes) {
  receiving_ = &incoming(number);
  receiving_bytes_ = payload_bytes;
  return receiving_->begin_frame_on_loop(payload_bytes);
}

void TcpLink::on_data_complete(std::uint32_t /*number*/) {
  receiving_->finish_frame_on_loop(receiving_bytes_);
  dirty_[static_cast<std::size_t>(receiving_->id().bell)] = true;
}

void TcpLink::on_credit(std::uint32_t number, std::uint64_t released_bytes) {
  TcpChannel* channel = nullptr;
  {
    const std::lock_guard lock(channels_mutex_);
    if (number != 0 && number <= outgoing_.size()) channel = outgoing_[number - 1];
  }
  if (channel == nullptr) {
    throw Error(ErrorKind::kProtocol,
                "it gives credit for channel number " + std::to_string(number) + ", which was never opened");
  }
  channel->note_released_on_loop(released_bytes);
  dirty_[static_cast<std::size_t>(channel->id().bell)] = true;
}

void TcpLink::on_open(std::uint32_t number, const tcp::OpenBody& body) {
  const bool valid_window = std::has_single_bit(body.window_bytes) && body.window_bytes >= tcp::kMinWindow &&
                            body.window_bytes <= tcp::kMaxWindow;
  if (number == 0 || body.bell >= kBellCount || !valid_window) {
    throw Error(ErrorKind::kProtocol, "it opens channel number " + std::to_string(number) + " with bell " +
                                          std::to_string(body.bell) + " and a window of " +
                                          std::to_string(body.window_bytes) + " bytes");
  }
  TcpChannel& channel = find_or_make({body.group, body.index, static_cast<Bell>(body.bell)}, false);
  channel.open_on_loop(number, body.window_bytes);
  if (!incoming_.emplace(number, &channel).second) {
    throw Error(ErrorKind::kProtocol, "it opens channel number " + std::to_string(number) + " twice");
  }
}

void TcpLink::on_close(std::uint32_t number) {
  static_cast<void>(incoming(number));
  incoming_.erase(number);
}

void TcpLink::on_control(std::span<const std::byte> message) {
  if (state() == LinkState::kUp) observer().on_control(*this, message);
}

void TcpLink::on_heartbeat(std::uint64_t interval_ms) {
  // A peer that beats more slowly than this side expects is not lost; a day bounds the arithmetic.
  constexpr std::uint64_t kDayMs = 86'400'000;
  patience_ = std::max(options().heartbeat, std::chrono::milliseconds(std::min(interval_ms, kDayMs)));
}

void TcpLink::on_bye() {
  bool closing = false;
  {
    const std::lock_guard lock(mutex_);
    peer_done_ = true;
    closing = said_bye_;
  }
  if (!closing) fail_on_loop(lost("closed its endpoint in good order"), true);
}

}  // namespace atl::transport
