// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/link/frame_sender.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/wire/codecs.h"

namespace atl::infer {

/// An inference's other side over a link. Sends rows in frames, packed as measurement says is quickest. Made once for a
/// division; one inference at a time.
class LinkExchange : public Exchange {
 public:
  /// Bytes per second towards the other side, as far as they are known.
  using Rate = std::function<double()>;
  /// All are borrowed. `lossy` replaces the lossless codecs for floating-point rows; kRaw: none.
  LinkExchange(const Graph& graph, const Operators& operators, FrameSender& sender, Arrivals& arrivals, Rate rate,
               wire::Codec lossy = wire::Codec::kRaw);

  void begin(std::uint64_t inference);
  void send(int tensor, Region rows, HostBytes bytes) override;
  std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override;

  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }  ///< of this inference, as packed

 private:
  const Graph& graph_;
  const Operators& operators_;
  FrameSender& sender_;
  Arrivals& arrivals_;
  const Rate rate_;
  const wire::Codec lossy_;
  std::map<int, wire::CodecChooser> choosers_;  // by tensor
  std::uint64_t inference_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace atl::infer
