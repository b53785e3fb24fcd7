// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/reassembly.h"
#include "atoll/transport/tcp/wire.h"

// Bytes that a peer sends on channel 0 of a link over several rails, and through UCX into a channel's ring: pieces at
// any position, in any order.
namespace atl::fuzz {

/// Bytes of an input, from the front; zeros after its end.
class Source {
 public:
  explicit Source(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool is_empty() const { return bytes_.empty(); }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const auto part = take(bytes);
    if (!part.empty()) std::memcpy(&value, part.data(), part.size());
    return value;
  }
  std::span<const std::byte> take(std::size_t bytes) {
    const auto part = bytes_.first(std::min(bytes, bytes_.size()));
    bytes_ = bytes_.subspan(part.size());
    return part;
  }

 private:
  std::span<const std::byte> bytes_;
};

/// Segments of the control stream: for each, 4 bytes of position and 2 of length, then its bytes. The first byte of all
/// chooses whether positions are counted in units, as peers do, or taken as they are.
inline void control_reader(std::span<const std::byte> bytes) {
  using namespace transport::tcp;
  Source source(bytes);
  const bool in_units = (source.number(1) & 1U) != 0;
  std::uint64_t before = 0;
  ControlReader subject([](const Prefix& prefix, std::span<const std::byte> body) {
    if (body.size() != prefix.length || body.size() > transport::kMaxControlBytes) std::abort();
    const std::vector<std::byte> copy(body.begin(), body.end());
  });
  try {
    while (!source.is_empty()) {
      const std::uint64_t position = source.number(4) * (in_units ? kUnit : 1);
      const auto length = static_cast<std::uint32_t>(source.number(2)) + 1;
      const auto part = source.take(length);
      if (std::byte* const to = subject.begin(position, length)) std::memcpy(to, part.data(), part.size());
      subject.finish(position, length);
      if (subject.released() < before) std::abort();
      before = subject.released();
      static_cast<void>(subject.owes_credit());
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
  }
}

}  // namespace atl::fuzz
