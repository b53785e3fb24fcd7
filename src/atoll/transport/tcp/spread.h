// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "atoll/transport/tcp/rail.h"
#include "atoll/transport/tcp/rail_scheduler.h"
#include "atoll/transport/tcp/segments.h"

namespace atl::transport::tcp {

/// The sending half of a link over several rails: cuts frames into segments, gives them to rails, and keeps each until
/// it is acknowledged, so that those of a failed rail are sent again over the others. Control messages are a stream of
/// their own, number 0, which goes first. Guarded by the link's mutex. Allocates when it is made, and for messages that
/// wait for frames.
class Spread {
 public:
  using Time = RailScheduler::Time;

  /// The maximum bytes of control messages, with padding, on their way at once; the rest of channel 0's window is for
  /// those that must not fail.
  static constexpr std::uint64_t kMaxControl = std::uint64_t{64} << 10;

  /// `rails` must outlive this object. Throws Error(kUnavailable) when out of memory.
  explicit Spread(const std::vector<std::unique_ptr<Rail>>& rails);

  /// Returns whether push_frame may be called; false while too many segments are under way.
  bool takes_frames() const noexcept { return pool_.free_count() > kReserve; }
  bool is_half_free() const noexcept { return 2 * pool_.free_count() >= pool_.count(); }

  /// Accepts bytes that `stream` holds.
  void push_frame(SendStream& stream, std::uint64_t position, std::size_t bytes, Time now);

  /// Accepts a control message that goes out before all waiting frames; returns false when there is no room. `must` is
  /// for small messages that must not be refused before channel 0's whole window is full.
  bool push_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now);

  /// The same for a message that arrives after everything accepted before it. Closes `finished` then: nothing more of
  /// that stream may follow.
  bool push_after_frames(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now,
                         SendStream* finished = nullptr);

  /// Notes that the rail was opened.
  void open(Rail& rail, const RailScheduler::Expected& expected, Time now);
  /// Closes the rail; what was on its way goes over the others. Returns the number of those bytes.
  std::uint64_t close(Rail& rail, Time now);

  /// These two throw Error(kProtocol) on an impossible total.
  void acknowledged(Rail& rail, std::uint64_t total, Time now);
  void control_released(std::uint64_t total);

  /// Gives the rails what they take.
  void pump(Time now);
  /// Measures an unused rail when it is due.
  void probe(Time now);
  /// Requests an acknowledgement on a rail that carries nothing: there the loss of messages that are not acknowledged
  /// by themselves, such as credit, would go unnoticed.
  void request_ack(Rail& rail, Time now);
  /// Requests an acknowledgement on each rail that carries nothing.
  void request_acks_on_idle_rails(Time now);

  /// Returns whether everything that was accepted has arrived.
  bool is_idle() const noexcept { return after_frames_.empty() && pool_.free_count() == pool_.count(); }

  /// Returns the open rail over which a few bytes arrive first; nullptr when none is open.
  Rail* nearest() const noexcept;

  const RailScheduler& scheduler() const noexcept { return scheduler_; }

 private:
  static constexpr std::size_t kSegments = 4096;
  static constexpr std::size_t kReserve = 512;  // for cutting what was accepted, and for control
  static constexpr std::size_t kMaxAfterFramesBytes = std::size_t{64} << 10;

  struct AfterFrames {
    std::uint64_t serial;  // of the last segment accepted before it
    Type type;
    std::uint32_t channel;
    std::vector<std::byte> body;
    SendStream* finished;
  };

  unsigned ready() const noexcept;
  bool send_next(Time now);
  Segment* cut_front(std::size_t bytes) noexcept;
  void write(Rail& rail, Segment* segment, Time now);
  void write_probe(Rail& rail, std::size_t bytes);
  void write_ack_request(Rail& rail, Time now);
  void release_after_frames();
  bool enter_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must);
  void request_last_acks(Time now);
  void request_acks_for_rates(Time now);
  bool request_round_trip(Rail& rail, Time now);
  std::uint64_t oldest_serial() const noexcept;

  const std::vector<std::unique_ptr<Rail>>& rails_;
  RailScheduler scheduler_;
  SegmentPool pool_{kSegments};
  SegmentList control_;  // what waits, in the order in which it goes out
  SegmentList again_;
  SegmentList frames_;
  std::uint64_t waiting_bytes_ = 0;  // in again_ and frames_
  std::uint64_t serial_ = 0;
  std::deque<AfterFrames> after_frames_;
  std::size_t after_frames_bytes_ = 0;
  SendStream control_stream_;
  std::uint64_t control_sent_ = 0;
  std::uint64_t control_released_ = 0;
  bool is_closing_ = false;  // the last message was accepted
};

}  // namespace atl::transport::tcp
