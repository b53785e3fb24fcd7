// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/link/frame_sender.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/wire/codecs.h"

namespace atl::infer {

/// The other side of an inference, reached over a link. Sends rows in frames, with the codec that measurement shows to
/// be quickest. Made once for a plan; one inference at a time.
class LinkExchange : public Exchange {
 public:
  /// Bytes per second towards the other side, as far as they are known.
  using Rate = std::function<double()>;
  /// Borrows everything. `lossy` replaces the lossless codecs where it makes rows shorter: kHalf and kInt8 for
  /// floating-point tensors, kJpeg for inputs of the graph that are images; kRaw: none. `measures_loss`: measures how
  /// much it changed the values.
  LinkExchange(const Graph& graph, const Operators& operators, FrameSender& sender, Arrivals& arrivals, Rate rate,
               wire::Codec lossy = wire::Codec::kRaw, bool measures_loss = false);

  void begin(std::uint64_t inference);
  void send(int tensor, Region rows, HostBytes bytes) override;
  std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override;

  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }  ///< of this inference, as packed
  /// The largest loss in the measured messages of this inference, which are the first of each tensor and every 16th;
  /// none: no message was measured.
  const std::optional<wire::Loss>& loss() const noexcept { return loss_; }

 private:
  bool is_lossy(int tensor, const Tensor& type) const;
  void note_loss(int tensor, const Tensor& type, std::span<const std::byte> bytes, wire::Codec codec,
                 std::span<const std::byte> packed);

  const Graph& graph_;
  const Operators& operators_;
  FrameSender& sender_;
  Arrivals& arrivals_;
  const Rate rate_;
  const wire::Codec lossy_;
  const bool measures_loss_;
  std::map<int, wire::CodecChooser> choosers_;   // by tensor
  std::map<int, std::uint64_t> lossy_messages_;  // by tensor
  std::uint64_t inference_ = 0;
  std::uint64_t sent_bytes_ = 0;
  std::optional<wire::Loss> loss_;
};

}  // namespace atl::infer
