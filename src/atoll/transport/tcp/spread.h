// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atoll/transport/tcp/rail.h"
#include "atoll/transport/tcp/rail_scheduler.h"
#include "atoll/transport/tcp/segments.h"

namespace atl::transport::tcp {

/// The sending half of a link over several rails: cuts frames into segments, gives them to rails, and keeps each until it is acknowledged, so that
/// those of a rail that fails are sent again over the others. Control messages are a stream of their own, number 0, which goes first.
/// Guarded by the link's mutex. Allocates when it is made, and for messages that wait behind frames.
class Spread {
 public:
  using Time = RailScheduler::Time;

  /// Most bytes of control messages, with their padding, on their way at once; the rest of channel 0's window is for those that must not fail.
  static constexpr std::uint64_t kMaxControl = std::uint64_t{64} << 10;

  /// `rails` outlive this object. Throws Error(kUnavailable) when there is no memory.
  explicit Spread(const std::vector<std::unique_ptr<Rail>>& rails);

  /// Whether push_frame may be called; false while too many segments are under way.
  bool takes_frames() const noexcept { return pool_.free_count() > kReserve; }
  bool is_half_free() const noexcept { return 2 * pool_.free_count() >= pool_.count(); }

  /// Accepts bytes that `stream` holds.
  void push_frame(SendStream& stream, std::uint64_t position, std::size_t bytes, Time now);

  /// Accepts a control message that goes out before all frames that wait; false when there is no room. `must` for what is small and
  /// must not be refused before channel 0's whole window is full.
  bool push_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now);

  /// The same for what arrives after everything that was accepted before. Then `finished` is closed: nothing more of it
  /// may follow.
  bool push_behind(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must, Time now,
                   SendStream* finished = nullptr);

  /// The rail was opened.
  void open(Rail& rail, const RailScheduler::Expected& expected, Time now);
  /// Closes it; what was on its way goes over the others. Returns how many bytes that is.
  std::uint64_t close(Rail& rail, Time now);

  /// Throws Error(kProtocol) on what cannot be, as the next.
  void acknowledged(Rail& rail, std::uint64_t total, Time now);
  void control_released(std::uint64_t total);

  /// Gives to the rails what they take.
  void pump(Time now);
  /// Measures a rail that is unused, when it is time.
  void probe(Time now);
  /// Asks for an acknowledgement on a rail that carries nothing: there it would go unseen that what is not acknowledged
  /// by itself, such as credit, is lost.
  void ask(Rail& rail, Time now);
  /// Asks for an acknowledgement on each rail that carries nothing.
  void ask_idle_rails(Time now);

  /// Everything that was accepted has arrived.
  bool is_idle() const noexcept { return behind_.empty() && pool_.free_count() == pool_.count(); }

  /// The open rail over which a few bytes arrive first; nullptr when none is open.
  Rail* nearest() const noexcept;

  RailScheduler& scheduler() noexcept { return scheduler_; }
  const RailScheduler& scheduler() const noexcept { return scheduler_; }

 private:
  static constexpr std::size_t kSegments = 4096;
  static constexpr std::size_t kReserve = 512;  // for cutting what was accepted, and for control
  static constexpr std::size_t kMaxBehindBytes = std::size_t{64} << 10;

  struct Behind {
    std::uint64_t serial;  // those with larger ones came later
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
  void write_question(Rail& rail, Time now);
  void release_behind();
  bool enter_control(Type type, std::uint32_t channel, std::span<const std::byte> body, bool must);
  void ask_for_acknowledgements(Time now);
  void ask_for_rates(Time now);
  bool ask_for_round_trip(Rail& rail, Time now);
  std::uint64_t oldest_serial() const noexcept;

  const std::vector<std::unique_ptr<Rail>>& rails_;
  RailScheduler scheduler_;
  SegmentPool pool_{kSegments};
  SegmentList control_;  // what waits, in the order in which it goes out
  SegmentList again_;
  SegmentList frames_;
  std::uint64_t waiting_bytes_ = 0;  // in again_ and frames_
  std::uint64_t serial_ = 0;
  std::deque<Behind> behind_;
  std::size_t behind_bytes_ = 0;
  SendStream control_stream_;
  std::uint64_t control_sent_ = 0;
  std::uint64_t control_released_ = 0;
  bool is_closing_ = false;  // the last message was accepted
};

}  // namespace atl::transport::tcp
