// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/link_exchange.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace atl::infer {
namespace {

// So small that the receiver can tell the rate from the time between a message's frames.
constexpr std::size_t kFrameBytes = std::size_t{1} << 15;
static_assert(kFrameBytes <= wire::kMaxDataBytes);

}  // namespace

LinkExchange::LinkExchange(const Graph& graph, const Operators& operators, FrameSender& sender, Arrivals& arrivals,
                           Rate rate, wire::Codec lossy)
    : graph_(graph),
      operators_(operators),
      sender_(sender),
      arrivals_(arrivals),
      rate_(std::move(rate)),
      lossy_(lossy) {}

void LinkExchange::begin(std::uint64_t inference) {
  inference_ = inference;
  sent_bytes_ = 0;
}

void LinkExchange::send(int tensor, Region rows, HostBytes bytes) {
  const Tensor type = type_of_rows(graph_, operators_, tensor, rows);
  // A state says something of all elements, and is small.
  const bool is_state = static_cast<std::size_t>(tensor) >= graph_.tensors.size();
  wire::Packed packed = is_floating(type.dtype) && lossy_ != wire::Codec::kRaw && !is_state
                            ? wire::pack(lossy_, type, bytes.bytes)
                            : choosers_[tensor].pack(type, bytes.bytes, rate_());
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
  do {  // a message without bytes is one frame
    const std::size_t size = std::min(bytes.bytes.size() - header.offset, kFrameBytes);
    header.payload_bytes = static_cast<std::uint32_t>(size);
    sender_.send(header, {bytes.bytes.subspan(header.offset, size), bytes.owner});
    header.offset += size;
  } while (header.offset < bytes.bytes.size());
}

std::optional<HostBytes> LinkExchange::receive(int tensor, Region rows, Deadline until) {
  return arrivals_.wait(tensor, rows, until);
}

}  // namespace atl::infer
