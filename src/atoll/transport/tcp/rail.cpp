// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/rail.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "atoll/transport/address.h"

namespace atl::transport::tcp {

namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
constexpr std::size_t kAfterLargeFrame = std::size_t{4} << 10;
constexpr std::size_t kLargeFrame = std::size_t{16} << 10;
constexpr std::size_t kMinToWakeFor = std::size_t{64} << 10;  // of a frame that has more to come

constexpr std::array<std::byte, kMaxProbe> kNothing{};

}  // namespace

Rail::Rail(MessageSink& sink, OnBroken on_broken, std::size_t index, std::size_t max_message_bytes)
    : sink_(sink), on_broken_(std::move(on_broken)), index_(index), queue_(max_message_bytes) {}

void Rail::open(ByteStream stream) {
  path_ = to_string(local_address(stream.fd())) + " -> " + to_string(remote_address(stream.fd())) +
          (stream.is_secure() ? " in TLS" : "");
  stream_ = std::move(stream);
  ++generation_;
  queue_.clear();
  bytes_out_ = acknowledged_ = bytes_in_ = 0;
  send_error_ = 0;
  least_to_wake_for_ = 1;
  parser_.emplace(sink_, max_payload_of(kMaxWindowBytes));
  incoming = {};
  watch = {};
}

void Rail::close(SegmentList* unfinished) noexcept {
  stream_.close();
  current_ = nullptr;
  while (!on_their_way_.empty()) unfinished->push_back(on_their_way_.pop_front());
}

std::size_t Rail::write_pieces(iovec* pieces, std::size_t count) {
  const auto sent = stream_.write({pieces, count});
  if (sent < 0) {
    note_unsent();
    return 0;
  }
  bytes_out_ += static_cast<std::uint64_t>(sent);
  return static_cast<std::size_t>(sent);
}

/// The reason is in errno; a full socket is not an error.
void Rail::note_unsent() {
  if (errno == EAGAIN || send_error_ != 0) return;
  send_error_ = errno;
  on_broken_(*this);
}

bool Rail::write_small(Lane lane, Type type, std::uint32_t channel, std::span<const std::byte> body) {
  const Prefix prefix{.type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size())};
  std::size_t sent = 0;
  if (queue_.empty() && current_ == nullptr) {
    std::array pieces{piece_of(bytes_of(prefix)), piece_of(body)};
    sent = write_pieces(pieces.data(), pieces.size());
    if (sent == sizeof prefix + body.size()) return true;
  }
  const SendQueue::Parts parts{bytes_of(prefix), body};
  return lane == Lane::kUrgent ? queue_.push_urgent(parts, sent) : queue_.push_small(parts, sent);
}

/// Composes what precedes a segment's bytes: the channel's description, if it is new on this rail, and the segment's
/// prefix.
void Rail::compose_head(Segment& segment) noexcept {
  head_bytes_ = 0;
  const auto append = [&](const auto& value) {
    std::memcpy(head_.data() + head_bytes_, &value, sizeof value);
    head_bytes_ += sizeof value;
  };
  if (segment.stream == nullptr) {
    append(Prefix{.type = Type::kProbe, .length = segment.bytes});
    return;
  }
  SendStream& stream = *segment.stream;
  const unsigned bit = 1U << index_;
  if (stream.number() != 0 && (stream.announced & bit) == 0) {
    append(Prefix{.type = Type::kOpen, .channel = stream.number(), .length = sizeof(OpenBody)});
    append(stream.body());
    stream.announced |= bit;
  }
  append(Prefix{.type = Type::kSegment, .channel = stream.number(), .length = segment.bytes});
  append(segment.position);
}

void Rail::write_segment(Segment* segment) {
  compose_head(*segment);
  segment->message_bytes = static_cast<std::uint32_t>(head_bytes_ + segment->bytes);
  segment->end = bytes_out_ + segment->message_bytes;
  on_their_way_.push_back(segment);
  current_ = segment;
  current_sent_ = 0;
  write_rest();
}

/// Gathers what is left of the segment under way; returns the number of pieces.
std::size_t Rail::gather_current(iovec* pieces, std::size_t* bytes) const noexcept {
  if (current_ == nullptr) return 0;
  const auto data = current_->stream == nullptr ? std::span(kNothing).first(current_->bytes)
                                                : current_->stream->read(current_->position, current_->bytes);
  const std::size_t of_head = std::min(current_sent_, head_bytes_);
  pieces[0] = piece_of(std::span(head_).subspan(of_head, head_bytes_ - of_head));
  pieces[1] = piece_of(data.subspan(current_sent_ - of_head));
  *bytes = pieces[0].iov_len + pieces[1].iov_len;
  return 2;
}

void Rail::write_rest() {
  std::array<iovec, SendQueue::kMaxPieces> queued;
  std::array<iovec, SendQueue::kMaxPieces + 2> pieces;
  if (can_write() && !stream_.flush()) return note_unsent();
  while (can_write() && (current_ != nullptr || !queue_.empty())) {
    std::size_t own = 0;
    const std::size_t first = gather_current(pieces.data(), &own);
    const std::size_t others = queue_.gather(queued);
    std::copy_n(queued.begin(), others, pieces.begin() + static_cast<std::ptrdiff_t>(first));
    const std::size_t sent = write_pieces(pieces.data(), first + others);
    if (sent == 0) return;
    const std::size_t of_current = std::min(sent, own);
    current_sent_ += of_current;
    if (of_current == own) current_ = nullptr;
    queue_.consume(sent - of_current);
  }
}

void Rail::acknowledge(std::uint64_t total) {
  if (total < acknowledged_ || total > bytes_out_) {
    bad_message("it acknowledges ", total, " bytes of ", bytes_out_, ", after ", acknowledged_);
  }
  acknowledged_ = total;
}

Segment* Rail::take_acknowledged() noexcept {
  if (on_their_way_.empty() || on_their_way_.front()->end > acknowledged_) return nullptr;
  return on_their_way_.pop_front();
}

void Rail::sleep_through_frame_on_loop() {
  if (stream_.is_secure()) return;  // a part of the rest may have been received already, still encrypted
  const std::size_t left = parser_->direct().size();
  const int wanted = left < kLargeFrame ? 1 : static_cast<int>(std::min(left, kMinToWakeFor));
  if (wanted == least_to_wake_for_) return;
  least_to_wake_for_ = wanted;
  // Raises an edge itself if that much has already arrived.
  ::setsockopt(stream_.fd(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

std::ptrdiff_t Rail::read_on_loop(bool* drained) {
  const auto direct = parser_->direct();
  // Only a little is read beyond a large frame, because those bytes are copied once more.
  const auto beyond = loop_buffer().first(direct.size() >= kLargeFrame ? kAfterLargeFrame : kScratchBytes);
  const std::array<iovec, 2> pieces{iovec{direct.data(), direct.size()}, iovec{beyond.data(), beyond.size()}};
  const auto got = stream_.read(pieces, drained, watch.hangup);
  if (got <= 0) return got;
  const auto count = static_cast<std::size_t>(got);
  bytes_in_ += count;
  const std::size_t into_frame = std::min(count, direct.size());
  if (into_frame != 0) parser_->advance_direct(into_frame);
  parser_->consume(beyond.first(count - into_frame));
  return got;
}

}  // namespace atl::transport::tcp
