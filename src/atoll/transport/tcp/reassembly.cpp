// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/reassembly.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace atl::transport::tcp {

namespace {

constexpr std::uint64_t kReportEvery = std::uint64_t{16} << 10;  // a quarter of what a peer may have on its way

/// Returns `count` bits from `first` on; count is 1 to 64 - first.
std::uint64_t bits(std::uint64_t first, std::uint64_t count) {
  return (count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
}

/// Calls visit(unit, mask) for each word that holds units from `first` to `last`; `unit` is one of that word.
template <class Visit>
void each_word(std::uint64_t first, std::uint64_t last, const Visit& visit) {
  while (first < last) {
    const std::uint64_t at = first % 64;
    const std::uint64_t count = std::min(64 - at, last - first);
    visit(first, bits(at, count));
    first += count;
  }
}

}  // namespace

SegmentMap::SegmentMap(std::uint64_t window_bytes) : words_(window_bytes / kUnit / 64) {}

bool SegmentMap::has(std::uint64_t position, std::uint64_t bytes) const {
  const std::uint64_t window = words_.size() * 64 * kUnit;
  const std::uint64_t stop = position + whole_units(bytes);
  const bool is_within = position % kUnit == 0 && stop > position && (stop <= end_ || stop - end_ <= window);
  std::uint64_t some = 0;
  bool all = true;
  if (is_within && stop > end_ && position >= end_) {
    each_word(position / kUnit, stop / kUnit, [&](std::uint64_t unit, std::uint64_t mask) {
      const std::uint64_t found = words_[(unit / 64) & (words_.size() - 1)] & mask;
      some |= found;
      all = all && found == mask;
    });
  }
  const bool straddles = position < end_ && stop > end_;
  if (!is_within || straddles || (some != 0 && !all)) {
    bad_message("a segment of ", bytes, " bytes at ", position, " does not fit what has arrived up to ", end_);
  }
  return all;
}

void SegmentMap::add(std::uint64_t position, std::uint64_t bytes) noexcept {
  const std::uint64_t stop = position + whole_units(bytes);
  if (stop <= end_) return;
  each_word(position / kUnit, stop / kUnit, [&](std::uint64_t unit, std::uint64_t mask) { word_of(unit) |= mask; });
  for (;;) {
    const std::uint64_t unit = end_ / kUnit;
    std::uint64_t& word = word_of(unit);
    const auto run = static_cast<std::uint64_t>(std::countr_one(word >> (unit % 64)));
    if (run == 0) return;
    word &= ~bits(unit % 64, run);
    end_ += run * kUnit;
  }
}

ControlReader::ControlReader(Take take) : take_(std::move(take)), ring_(MappedRing::create_private(kControlWindow)) {}

std::byte* ControlReader::begin(std::uint64_t position, std::uint32_t bytes) {
  if (map_.has(position, bytes)) return nullptr;
  if (position + whole_units(bytes) - released_ > kControlWindow) bad_message("control messages exceed their credit");
  return ring_.at(position);
}

void ControlReader::finish(std::uint64_t position, std::uint32_t bytes) {
  if (map_.has(position, bytes)) return;  // it has come over another rail in the meantime
  map_.add(position, bytes);
  while (take_front()) {
  }
}

bool ControlReader::take_front() {
  const std::uint64_t available = map_.end() - released_;
  if (available == 0) return false;
  const std::byte* const at = ring_.at(released_);
  const auto prefix = read_as<Prefix>({at, sizeof(Prefix)});
  const bool is_empty = prefix.type == Type::kClose || prefix.type == Type::kBye;
  const bool fits = prefix.type == Type::kControl ? prefix.length <= kMaxControlBytes : is_empty && prefix.length == 0;
  if (prefix.magic != Prefix::kMagic || prefix.zero != 0 || !fits) {
    bad_message("a control message of type ", static_cast<int>(prefix.type), " with ", prefix.length, " bytes");
  }
  const std::uint64_t bytes = whole_units(sizeof(Prefix) + prefix.length);
  if (bytes > available) return false;
  released_ += bytes;
  take_(prefix, {at + sizeof(Prefix), prefix.length});
  return true;
}

bool ControlReader::owes_credit() noexcept {
  if (released_ - reported_ < kReportEvery) return false;
  reported_ = released_;
  return true;
}

}  // namespace atl::transport::tcp
