// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

namespace atl::transport::tcp {

/// Messages that the socket has not taken yet, in two lanes: data in order, and urgent ones (credit, control,
/// heartbeat) that go out before the data as soon as the message under way is complete. Bounded; allocates its memory
/// on first use. Not thread-safe; the link's mutex guards it.
class SendQueue {
 public:
  using Parts = std::initializer_list<std::span<const std::byte>>;
  static constexpr std::size_t kMaxPieces = 6;

  /// The data lane holds at least one message of `max_message_bytes`.
  explicit SendQueue(std::size_t max_message_bytes);

  bool empty() const noexcept { return data_.used() == 0 && urgent_.used() == 0; }
  std::size_t urgent_bytes() const noexcept { return urgent_.used(); }

  /// Returns whether push() may be called with a message of `bytes`. Some room is reserved for small messages that must
  /// not fail (push_small).
  bool fits(std::size_t bytes) const noexcept { return data_.free() >= bytes + kSmallReserve; }
  bool half_free() const noexcept { return data_.used() <= data_.capacity() / 2; }

  /// Appends one message to the data lane. The first `sent` of its bytes have left already; then the queue must be
  /// empty.
  void push(Parts parts, std::size_t sent = 0);

  /// The same for a message that must follow the data, such as the end of a channel; false when even the reserve is
  /// full.
  bool push_small(Parts parts, std::size_t sent = 0);

  /// Returns whether push_small() of a message of `bytes` leaves half of the reserve to messages that must not fail.
  bool fits_small(std::size_t bytes) const noexcept { return data_.free() >= bytes + kSmallReserve / 2; }

  /// Appends one message to the urgent lane; false when that is full. Likewise with `sent`.
  bool push_urgent(Parts parts, std::size_t sent = 0);

  /// Forgets everything; the memory stays.
  void clear() noexcept {
    data_.clear();
    urgent_.clear();
  }

  /// Gathers what to send next, in order; returns the number of pieces.
  std::size_t gather(std::array<iovec, kMaxPieces>& pieces) const noexcept;

  /// The socket took the first `count` bytes of what gather() gave.
  void consume(std::size_t count) noexcept;

 private:
  static constexpr std::size_t kSmallReserve = std::size_t{128} << 10;
  static constexpr std::size_t kUrgentBytes = std::size_t{512} << 10;

  /// A ring of whole messages, the first of which may be partly gone.
  class Lane {
   public:
    explicit Lane(std::size_t capacity) noexcept : capacity_(capacity) {}
    std::size_t capacity() const noexcept { return capacity_; }
    std::size_t used() const noexcept { return static_cast<std::size_t>(tail_ - head_); }
    std::size_t free() const noexcept { return capacity_ - used(); }
    std::size_t left_of_first() const noexcept { return left_; }  ///< 0: nothing of the first message is gone
    void clear() noexcept { head_ = tail_ = left_ = 0; }
    void append(Parts parts, std::size_t sent);
    std::size_t gather(std::size_t from, std::size_t count, iovec* pieces) const noexcept;
    void consume(std::size_t count) noexcept;

   private:
    void write(std::span<const std::byte> bytes) noexcept;
    std::size_t first_message_bytes() const noexcept;

    const std::size_t capacity_;  // a power of two
    std::unique_ptr<std::byte[]> memory_;
    std::uint64_t head_ = 0;
    std::uint64_t tail_ = 0;
    std::size_t left_ = 0;
  };

  /// The bytes of the data lane that go before the urgent ones.
  std::size_t data_first() const noexcept { return urgent_.left_of_first() != 0 ? 0 : data_.left_of_first(); }

  Lane data_;
  Lane urgent_;
};

}  // namespace atl::transport::tcp
