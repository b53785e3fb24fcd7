// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/send_queue.h"

#include <algorithm>
#include <bit>

#include "atoll/core/copy.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

namespace {

std::size_t total(SendQueue::Parts parts) noexcept {
  std::size_t bytes = 0;
  for (const auto part : parts) bytes += part.size();
  return bytes;
}

}  // namespace

SendQueue::SendQueue(std::size_t max_message_bytes)
    : data_(std::bit_ceil(max_message_bytes + kSmallReserve)), urgent_(kUrgentBytes) {}

void SendQueue::push(Parts parts, std::size_t sent) { data_.append(parts, sent); }

bool SendQueue::push_small(Parts parts, std::size_t sent) {
  if (data_.free() < total(parts)) return false;
  data_.append(parts, sent);
  return true;
}

bool SendQueue::push_urgent(Parts parts, std::size_t sent) {
  if (urgent_.free() < total(parts)) return false;
  urgent_.append(parts, sent);
  return true;
}

std::size_t SendQueue::gather(std::array<iovec, kMaxPieces>& pieces) const noexcept {
  const std::size_t first = data_first();
  std::size_t count = data_.gather(0, first, pieces.data());
  count += urgent_.gather(0, urgent_.used(), pieces.data() + count);
  count += data_.gather(first, data_.used() - first, pieces.data() + count);
  return count;
}

void SendQueue::consume(std::size_t count) noexcept {
  const std::size_t first = std::min(count, data_first());
  const std::size_t urgent = std::min(count - first, urgent_.used());
  // The order matters: data_first() is about the state before any of this.
  data_.consume(first);
  urgent_.consume(urgent);
  data_.consume(count - first - urgent);
}

void SendQueue::Lane::append(Parts parts, std::size_t sent) {
  if (memory_ == nullptr) memory_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
  std::size_t skip = sent;
  for (const auto part : parts) {
    const std::size_t gone = std::min(skip, part.size());
    skip -= gone;
    write(part.subspan(gone));
  }
  if (sent != 0) left_ = used();
}

void SendQueue::Lane::write(std::span<const std::byte> bytes) noexcept {
  const std::size_t at = static_cast<std::size_t>(tail_ & (capacity_ - 1));
  const std::size_t before_wrap = std::min(bytes.size(), capacity_ - at);
  if (before_wrap != 0) copy_bytes(memory_.get() + at, bytes.data(), before_wrap);
  if (before_wrap != bytes.size()) copy_bytes(memory_.get(), bytes.data() + before_wrap, bytes.size() - before_wrap);
  tail_ += bytes.size();
}

std::size_t SendQueue::Lane::gather(std::size_t from, std::size_t count, iovec* pieces) const noexcept {
  if (count == 0) return 0;
  const std::size_t at = static_cast<std::size_t>((head_ + from) & (capacity_ - 1));
  const std::size_t before_wrap = std::min(count, capacity_ - at);
  pieces[0] = {memory_.get() + at, before_wrap};
  if (before_wrap == count) return 1;
  pieces[1] = {memory_.get(), count - before_wrap};
  return 2;
}

std::size_t SendQueue::Lane::first_message_bytes() const noexcept {
  std::array<std::byte, sizeof(Prefix)> prefix;
  for (std::size_t i = 0; i < prefix.size(); ++i) prefix[i] = memory_[(head_ + i) & (capacity_ - 1)];
  return message_bytes(read_as<Prefix>(prefix));
}

void SendQueue::Lane::consume(std::size_t count) noexcept {
  while (count != 0) {
    if (left_ == 0) left_ = first_message_bytes();
    const std::size_t step = std::min(count, left_);
    head_ += step;
    count -= step;
    left_ -= step;
  }
  if (head_ == tail_) head_ = tail_ = 0;  // starts over in memory that is still in the cache
}

}  // namespace atl::transport::tcp
