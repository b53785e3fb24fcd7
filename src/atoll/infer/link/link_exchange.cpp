// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/link_exchange.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "atoll/infer/wire/images.h"

namespace atl::infer {
namespace {

// Small enough for the receiver to measure the rate from the time between a message's frames.
constexpr std::size_t kFrameBytes = std::size_t{1} << 15;
static_assert(kFrameBytes <= wire::kMaxDataBytes);
constexpr std::uint64_t kMeasuredEvery = 16;

}  // namespace

LinkExchange::LinkExchange(const Graph& graph, const Operators& operators, FrameSender& sender, Arrivals& arrivals,
                           Rate rate, wire::Codec lossy, bool measures_loss)
    : graph_(graph),
      operators_(operators),
      sender_(sender),
      arrivals_(arrivals),
      rate_(std::move(rate)),
      lossy_(lossy),
      measures_loss_(measures_loss) {}

void LinkExchange::begin(std::uint64_t inference) {
  inference_ = inference;
  sent_bytes_ = 0;
  loss_.reset();
}

void LinkExchange::send(int tensor, Region rows, HostBytes bytes) {
  const Tensor type = type_of_rows(graph_, operators_, tensor, rows);
  // A state summarises all elements and is small, so it is never packed with loss.
  const bool is_state = static_cast<std::size_t>(tensor) >= graph_.tensors.size();
  const HostBytes plain = bytes;
  wire::Packed packed;
  if (!is_state && is_lossy(tensor, type)) packed = wire::pack(lossy_, type, bytes.bytes);
  if (packed.codec == wire::Codec::kRaw) packed = choosers_[tensor].pack(type, bytes.bytes, rate_());
  if (packed.codec != wire::Codec::kRaw) {
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(packed.bytes));
    bytes = {*owner, owner};
  }
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kTensor;
  header.codec = packed.codec;
  header.id = inference_;
  header.tensor = tensor;
  header.rows_begin = static_cast<std::int32_t>(rows.begin);
  header.rows_end = static_cast<std::int32_t>(rows.end);
  header.message_bytes = static_cast<std::uint32_t>(bytes.bytes.size());
  sent_bytes_ += bytes.bytes.size();
  do {  // an empty message is one frame
    const std::size_t size = std::min(bytes.bytes.size() - header.offset, kFrameBytes);
    sender_.send(header, {bytes.bytes.subspan(header.offset, size), bytes.owner});
    header.offset += size;
  } while (header.offset < bytes.bytes.size());
  if (measures_loss_ && !wire::is_lossless(packed.codec)) {
    note_loss(tensor, type, plain.bytes, packed.codec, bytes.bytes);
  }
}

bool LinkExchange::is_lossy(int tensor, const Tensor& type) const {
  if (lossy_ == wire::Codec::kRaw) return false;
  if (lossy_ != wire::Codec::kJpeg) return is_floating(type.dtype);
  const bool is_input = std::find(graph_.inputs.begin(), graph_.inputs.end(), tensor) != graph_.inputs.end();
  return is_input && wire::image_layout(type).has_value();
}

// The rows have been sent already, so this delays nothing.
void LinkExchange::note_loss(int tensor, const Tensor& type, std::span<const std::byte> bytes, wire::Codec codec,
                             std::span<const std::byte> packed) {
  if (lossy_messages_[tensor]++ % kMeasuredEvery != 0) return;
  const wire::Loss found = wire::loss_of(codec, type, bytes, packed);
  wire::Loss most = loss_.value_or(wire::Loss{});
  most.max = std::max(most.max, found.max);
  most.mean = std::max(most.mean, found.mean);
  loss_ = most;
}

std::optional<HostBytes> LinkExchange::receive(int tensor, Region rows, Deadline until) {
  return arrivals_.wait(tensor, rows, until);
}

}  // namespace atl::infer
