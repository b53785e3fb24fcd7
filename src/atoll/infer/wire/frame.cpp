// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/frame.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace atl::infer::wire {
namespace {

constexpr std::uint32_t kMagic = 0x464c5441;  // "ATLF"
constexpr std::size_t kLentBytes = sizeof(std::uint64_t) + sizeof(std::uint32_t);
constexpr std::size_t kSumAt = kHeaderBytes - sizeof(std::uint32_t);
constexpr std::array kKindNames{"control", "weights", "tensor", "probe", "lent"};  // from kind 1 on
static_assert(kKindNames.size() == static_cast<std::size_t>(FrameKind::kLent));

// A header as it travels.
struct HeaderOnWire {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  FrameKind kind = FrameKind::kControl;
  Codec codec = Codec::kRaw;
  std::uint64_t id = 0;
  std::int32_t tensor = 0;
  std::int32_t rows_begin = 0;
  std::int32_t rows_end = 0;
  std::uint32_t message_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t payload_sum = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t header_sum = 0;
};
static_assert(sizeof(HeaderOnWire) == kHeaderBytes && std::endian::native == std::endian::little);

std::uint64_t sum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// The checksum of the header's bytes before it, which include the payload's checksum.
std::uint32_t header_sum_of(std::span<const std::byte> header) {
  return static_cast<std::uint32_t>(sum_of(header.first(kSumAt)));
}

// Null for an unknown kind.
const char* name_of(FrameKind kind) {
  const std::size_t place = static_cast<std::size_t>(kind) - 1;
  return place < kKindNames.size() ? kKindNames[place] : nullptr;
}

// Describes the fault of a header; empty if it is valid.
std::string fault_of(const FrameHeader& header, std::size_t most_control_bytes) {
  const char* name = name_of(header.kind);
  if (name == nullptr) return "a frame of the unknown kind " + std::to_string(static_cast<int>(header.kind));
  const std::string frame = std::string("a ") + name + " frame";
  if (header.codec > Codec::kJpeg)
    return frame + " with the unknown codec " + std::to_string(static_cast<int>(header.codec));

  const bool is_control = header.kind == FrameKind::kControl;
  const bool is_lent = header.kind == FrameKind::kLent;
  const bool has_rows = is_lent || header.kind == FrameKind::kTensor;
  const bool has_message = has_rows || header.kind == FrameKind::kProbe;
  const bool rows_are_zero = header.tensor == 0 && header.rows_begin == 0 && header.rows_end == 0;
  if ((!has_rows && (!rows_are_zero || header.codec != Codec::kRaw)) || (!has_message && header.message_bytes != 0) ||
      (is_control && (header.id != 0 || header.offset != 0))) {
    return frame + " with a non-zero field that this kind does not use";
  }
  if (header.tensor < 0 || header.rows_begin < 0 || header.rows_end < header.rows_begin) {
    return frame + " of rows [" + std::to_string(header.rows_begin) + ", " + std::to_string(header.rows_end) +
           ") of tensor " + std::to_string(header.tensor) + ", which is invalid";
  }
  const std::uint64_t payload = header.payload_bytes;
  std::uint64_t least = has_message && header.message_bytes == 0 ? 0 : 1;
  std::uint64_t most = is_control ? std::min(most_control_bytes, kMaxControlBytes) : kMaxDataBytes;
  if (is_lent) least = most = kLentBytes;
  if (payload < least || payload > most) {
    return frame + " with a payload of " + std::to_string(payload) + " bytes: " + std::to_string(least) + " to " +
           std::to_string(most) + " are allowed";
  }
  const std::uint64_t end = has_message ? header.message_bytes : kMaxWeightBytes;
  if (!is_control && !is_lent && (header.offset > end || payload > end - header.offset)) {
    return frame + " with " + std::to_string(payload) + " bytes at byte " + std::to_string(header.offset) +
           ", beyond the end at " + std::to_string(end);
  }
  return {};
}

[[noreturn]] void bad_bytes(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "the other side sent " + what);
}

struct Parsed {
  FrameHeader header;
  std::uint64_t payload_sum = 0;
};

Parsed parse(std::span<const std::byte> bytes, std::size_t most_control_bytes) {
  const auto raw = transport::read_as<HeaderOnWire>(bytes);
  if (raw.magic != kMagic) bad_bytes("bytes that are not a frame: it does not speak this protocol");
  if (raw.version != kVersion) {
    throw Error(ErrorKind::kMismatch, "the other side sent a frame of wire version " + std::to_string(raw.version) +
                                          ", but this side has version " + std::to_string(kVersion) +
                                          ": install the same release on both");
  }
  if (raw.header_sum != header_sum_of(bytes)) bad_bytes("a frame's header that does not match its checksum");
  const FrameHeader header{raw.kind,     raw.codec,         raw.id,     raw.tensor,       raw.rows_begin,
                           raw.rows_end, raw.message_bytes, raw.offset, raw.payload_bytes};
  const std::string fault = fault_of(header, most_control_bytes);
  if (!fault.empty()) bad_bytes(fault);
  return {header, raw.payload_sum};
}

void deliver(const Parsed& parsed, std::span<const std::byte> payload, std::span<const std::byte> bytes,
             const FrameParser::OnFrame& on_frame) {
  if (sum_of(payload) != parsed.payload_sum) {
    bad_bytes(std::string("a ") + name_of(parsed.header.kind) + " frame's payload that does not match its checksum");
  }
  on_frame({parsed.header, payload, bytes});
}

}  // namespace

HeaderBytes encode(FrameHeader header, std::span<const std::byte> payload) {
  header.payload_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(payload.size(), UINT32_MAX));
  const std::string fault = fault_of(header, kMaxControlBytes);
  if (!fault.empty()) throw Error(ErrorKind::kInvalidArgument, fault + " cannot be sent");
  HeaderOnWire raw{kMagic,
                   kVersion,
                   header.kind,
                   header.codec,
                   header.id,
                   header.tensor,
                   header.rows_begin,
                   header.rows_end,
                   header.message_bytes,
                   header.offset,
                   sum_of(payload),
                   header.payload_bytes};
  raw.header_sum = header_sum_of(transport::bytes_of(raw));
  return std::bit_cast<HeaderBytes>(raw);
}

FrameBytes make_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  const HeaderBytes head = encode(header, payload);
  std::vector<std::byte> bytes;
  bytes.reserve(head.size() + payload.size());
  bytes.insert(bytes.end(), head.begin(), head.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

FrameBytes make_frame(FrameHeader header, const LentPayload& lent) {
  header.kind = FrameKind::kLent;
  std::vector<std::byte> payload;
  ByteWriter writer(payload);
  writer.integer(lent.position);
  writer.integer(lent.bytes);
  return make_frame(header, payload);
}

LentPayload lent_by(const ReceivedFrame& frame) {
  ByteReader reader(frame.payload, "a lent frame's payload");
  LentPayload lent;
  lent.position = reader.integer<std::uint64_t>();
  lent.bytes = reader.integer<std::uint32_t>();
  const std::uint64_t end = frame.header.message_bytes;
  if (lent.bytes == 0 || frame.header.offset > end || lent.bytes > end - frame.header.offset) {
    bad_bytes("a lent frame with " + std::to_string(lent.bytes) + " bytes at byte " +
              std::to_string(frame.header.offset) + " of " + std::to_string(end));
  }
  return lent;
}

// Holds bytes until there are `up_to`; returns the number that it took from `bytes`.
std::size_t FrameParser::hold(std::span<const std::byte> bytes, std::size_t up_to) {
  const std::size_t count = std::min(bytes.size(), up_to - held_.size());
  held_.reserve(up_to);
  held_.insert(held_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

// Copies bytes to where the payload is assembled; returns how many.
std::size_t FrameParser::place(std::span<const std::byte> bytes) {
  const std::span<std::byte> rest = place_->bytes.subspan(placed_);
  const std::size_t count = std::min(bytes.size(), rest.size());
  std::copy_n(bytes.begin(), count, rest.begin());
  placed_ += count;
  return count;
}

void FrameParser::push(std::span<const std::byte> bytes, const OnFrame& on_frame) {
  if (is_broken_) bad_bytes("more bytes after malformed ones");
  is_broken_ = true;  // unless everything below succeeds
  while (!bytes.empty()) {
    if (!held_.empty() || bytes.size() < kHeaderBytes) {
      if (held_.size() < kHeaderBytes) bytes = bytes.subspan(hold(bytes, kHeaderBytes));
      if (held_.size() < kHeaderBytes) break;
    }
    const bool is_held = !held_.empty();
    const std::span<const std::byte> there = is_held ? std::span<const std::byte>(held_) : bytes;
    const Parsed parsed = parse(there.first(kHeaderBytes), most_control_bytes_);
    const std::size_t frame_bytes = kHeaderBytes + parsed.header.payload_bytes;
    if (!is_held && bytes.size() >= frame_bytes) {
      const std::span<const std::byte> frame = bytes.first(frame_bytes);
      bytes = bytes.subspan(frame_bytes);
      deliver(parsed, frame.subspan(kHeaderBytes), frame, on_frame);
      continue;
    }
    if (!place_ && held_.size() <= kHeaderBytes) place_ = find_place_ ? find_place_(parsed.header) : Place();
    if (place_ && !place_->bytes.empty()) {
      bytes = bytes.subspan(hold(bytes, kHeaderBytes));
      bytes = bytes.subspan(place(bytes));
      if (placed_ < place_->bytes.size()) break;
      const Place payload = *std::exchange(place_, std::nullopt);
      placed_ = 0;
      held_.clear();
      deliver(parsed, payload.bytes, {}, on_frame);
      continue;
    }
    bytes = bytes.subspan(hold(bytes, frame_bytes));
    if (held_.size() < frame_bytes) break;
    place_.reset();
    const std::span<const std::byte> frame(held_);
    deliver(parsed, frame.subspan(kHeaderBytes), frame, on_frame);
    held_.clear();
    // Large control messages are rare, so their memory is not kept.
    if (held_.capacity() > kHeaderBytes + kMaxDataBytes) held_ = std::vector<std::byte>();
  }
  is_broken_ = false;
}

}  // namespace atl::infer::wire
