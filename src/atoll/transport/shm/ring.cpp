// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "atoll/core/atomics.h"
#include "atoll/core/copy.h"
#include "atoll/core/error.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMeasuredFrom = 4096;  // below this size reading the clock costs more than it could save
constexpr std::uint64_t kTrialEvery = 256;   // windows
// A copy during which the thread was preempted is not representative, so a cost falls faster than it rises.
constexpr double kFall = 0.5;
constexpr double kRise = 0.05;
constexpr double kMaxRise = 4;            // times the known cost
constexpr double kStreamingMustSave = 3;  // the reader finds cached bytes sooner, and memory has less to do

/// The bytes of a trial: its first window only brings the ring's cache lines into the state in which this kind leaves
/// them.
constexpr std::uint64_t trial_bytes(std::size_t window_bytes) { return window_bytes + window_bytes / 4; }

std::size_t checked_window(std::size_t bytes) {
  if (is_valid_window(bytes)) return bytes;
  throw Error(ErrorKind::kInvalidArgument, "a window of ", bytes, " bytes is not a power of two from ", kMinWindowBytes,
              " to ", kMaxWindowBytes);
}

[[noreturn]] void inconsistent(const char* what, std::uint64_t seen, std::uint64_t own) {
  throw Error(ErrorKind::kProtocol, "shared-memory ring: the peer's ", what, " is ", seen, " while this end is at ",
              own);
}

}  // namespace

// A kind is kept for at least a whole trial, and until the other one is due for a trial or known to be cheaper.
RingCopy::Kind RingCopy::choose() const noexcept {
  const Kind better = cost_[kCached] > kStreamingMustSave * cost_[kStreaming] ? kStreaming : kCached;
  const Kind other = kind_ == kCached ? kStreaming : kCached;
  if (bytes_of_kind_ < trial_bytes(window_bytes_)) return kind_;
  if (cost_[other] == 0 || bytes_of_kind_ >= kTrialEvery * window_bytes_) return other;
  return better;
}

void RingCopy::operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes < kMeasuredFrom) return copy_bytes(to, from, bytes);
  const Kind kind = choose();
  if (kind != kind_) bytes_of_kind_ = 0;
  kind_ = kind;
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  kind == kStreaming ? copy_bytes_streaming(to, from, bytes) : copy_bytes(to, from, bytes);
  const double cost =
      std::chrono::duration<double, std::nano>(Clock::now() - started).count() / static_cast<double>(bytes);
  bytes_of_kind_ += bytes;
  if (bytes_of_kind_ <= window_bytes_) return;
  double& known = cost_[kind];
  if (known == 0) known = cost;
  known += (cost < known ? kFall : kRise) * (std::min(cost, kMaxRise * known) - known);
}

RingWriter::RingWriter(std::size_t window_bytes)
    : ring_(MappedRing::create(sizeof(RingControl), checked_window(window_bytes))), copy_(window_bytes) {
  new (ring_.control()) RingControl;
}

void RingWriter::look_at_tail() {
  const std::uint64_t tail = control().tail.load(std::memory_order_acquire);
  if (tail < known_tail_ || tail > head_) inconsistent("released position", tail, head_);
  known_tail_ = tail;
}

bool RingWriter::has_room(std::size_t bytes) {
  if (head_ + bytes - known_tail_ > ring_.data_bytes()) look_at_tail();
  return head_ + bytes - known_tail_ <= ring_.data_bytes();
}

void RingWriter::publish(const FrameHeader& header, std::size_t bytes) noexcept {
  std::memcpy(ring_.at(head_), &header, sizeof(FrameHeader));
  head_ += bytes;
  control().head.store(head_, std::memory_order_release);
}

bool RingWriter::try_write(const FrameHeader& header, std::span<const std::byte> payload) {
  const std::size_t bytes = footprint(payload.size());
  if (!has_room(bytes)) return !is_read();
  copy_(ring_.at(head_) + sizeof(FrameHeader), payload.data(), payload.size());
  publish(header, bytes);
  return true;
}

bool RingWriter::try_lend(const FrameHeader& header, const ArenaPlace& place) {
  if (!has_room(lent_footprint())) return !is_read();
  std::memcpy(ring_.at(head_) + sizeof(FrameHeader), &place, sizeof place);
  publish(header, lent_footprint());
  if (header.where != Payload::kThere) lent_end_ = head_;
  return true;
}

bool RingWriter::has_returned() {
  if (known_tail_ < lent_end_ && is_read()) look_at_tail();
  return known_tail_ >= lent_end_ || !is_read();
}

// The order of all accesses to `revoked` and `is_writing` decides: either the reader sees that the frame is revoked, or
// this side sees that the reader writes. The fence comes before anything that the caller writes to the lent memory.
void RingWriter::revoke() noexcept {
  revoked_ = std::max(revoked_, lent_end_);
  lent_end_ = 0;
  control().revoked.store(revoked_, std::memory_order_seq_cst);
  full_fence();
}

// Whatever the peer has stored in `tail`, the place is inside the ring.
std::optional<ArenaRange> RingWriter::written_range() const noexcept {
  if (control().is_writing.load(std::memory_order_seq_cst) == 0) return std::nullopt;
  Frame frame;
  read_frame(ring_.at(control().tail.load(std::memory_order_acquire)), frame);
  if (frame.header.where != Payload::kForResult) return std::nullopt;
  ArenaRange range;
  std::memcpy(&range.place, frame.payload.data(), sizeof range.place);
  range.bytes = frame.header.payload_bytes;
  return range;
}

RingReader::RingReader(const Fd& memory, std::size_t window_bytes, const PeerArena* lender)
    : ring_(MappedRing::map(memory, sizeof(RingControl), window_bytes, MappedRing::Access::kReadOnlyData)),
      lender_(lender) {}

const Frame* RingReader::look() {
  if (known_head_ == tail_) {
    const std::uint64_t head = control().head.load(std::memory_order_acquire);
    if (head == tail_) return nullptr;
    if (head < tail_ || head - tail_ > ring_.data_bytes() || head % sizeof(FrameHeader) != 0)
      inconsistent("written position", head, tail_);
    known_head_ = head;
  }
  read_frame(ring_.at(tail_), frame_);
  const std::size_t payload_bytes = frame_.payload.size();
  const Payload where = frame_.header.where;
  if (where > Payload::kThere) inconsistent("place of a payload", static_cast<std::uint64_t>(where), tail_);
  frame_bytes_ = where == Payload::kHere ? footprint(payload_bytes) : lent_footprint();
  if (payload_bytes > max_payload_of(ring_.data_bytes()) || frame_bytes_ > known_head_ - tail_) {
    inconsistent("frame length", payload_bytes, tail_);
  }
  if (where == Payload::kThere) frame_.payload = {};
  if (is_lent() && !find_lent(frame_)) return nullptr;
  has_frame_ = true;
  return &frame_;
}

// Returns false while the slab that holds the payload is still on its way. One that has been retired is missing too,
// but not before the writer has revoked the frame.
bool RingReader::find_lent(Frame& frame) {
  if (lender_ == nullptr) throw Error(ErrorKind::kProtocol, "shared-memory ring: the peer lends without an arena");
  ArenaPlace place;
  std::memcpy(&place, frame.payload.data(), sizeof place);
  lent_ = lender_->find(place, frame.payload.size());
  frame.payload = {lent_.get(), lent_ == nullptr ? 0 : frame.payload.size()};
  return lent_ != nullptr || is_revoked();
}

bool RingReader::is_intact() const noexcept {
  if (!is_lent()) return true;
  acquire_fence();  // after the caller's reads of the payload
  return lent_ != nullptr && !is_revoked();
}

std::byte* RingReader::begin_write() noexcept {
  control().is_writing.store(1, std::memory_order_seq_cst);
  full_fence();
  const bool may_write = frame_.header.where == Payload::kForResult && lent_ != nullptr && !is_revoked();
  if (may_write) return lent_.get();
  end_write();
  return nullptr;
}

void RingReader::pop() noexcept {
  tail_ += frame_bytes_;
  has_frame_ = false;
  lent_.reset();
  control().tail.store(tail_, std::memory_order_release);
}

void RingReader::close() noexcept { control().reader_closed.store(1, std::memory_order_release); }

}  // namespace atl::transport
