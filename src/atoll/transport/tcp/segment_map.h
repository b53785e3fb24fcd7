// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace atl::transport::tcp {

/// Which bytes of a stream have come, when they come in segments and in any order: one bit per kUnit of the window. Allocates when it is made;
/// each call takes time proportional to the segment's units over 64.
class SegmentMap {
 public:
  /// `window_bytes` is a power of two, at least 64 units: how far a segment may end behind end().
  explicit SegmentMap(std::uint64_t window_bytes);

  /// Everything before this position has come. A multiple of kUnit.
  std::uint64_t end() const noexcept { return end_; }

  /// Whether the segment's bytes have come already. The last unit of a segment counts as whole. Throws Error(kProtocol) for
  /// one that does not begin at a unit, ends beyond the window, or has come in part: segments are sent again as they were.
  bool has(std::uint64_t position, std::uint64_t bytes) const;

  /// They have come now. Only for what has() answered false for; may be repeated.
  void add(std::uint64_t position, std::uint64_t bytes) noexcept;

  /// Nothing comes any more but what has: gives the memory back. has() throws for everything behind end() from now on.
  void finish() noexcept { words_ = std::vector<std::uint64_t>(); }

 private:
  std::uint64_t& word_of(std::uint64_t unit) noexcept { return words_[(unit / 64) & (words_.size() - 1)]; }

  std::uint64_t end_ = 0;
  std::vector<std::uint64_t> words_;  // of units from end_ on; all others are zero
};

}  // namespace atl::transport::tcp
