// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/segment_map.h"

#include <algorithm>
#include <bit>
#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

namespace {

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
    throw Error(ErrorKind::kProtocol, "a segment of " + std::to_string(bytes) + " bytes at " +
                                          std::to_string(position) + " does not fit what has arrived up to " +
                                          std::to_string(end_));
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

}  // namespace atl::transport::tcp
