// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/control_reader.h"

#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/link.h"

namespace atl::transport::tcp {

namespace {

constexpr std::uint64_t kReportEvery = std::uint64_t{16} << 10;  // a quarter of what a peer may have on its way

}  // namespace

ControlReader::ControlReader(Take take) : take_(std::move(take)), ring_(MappedRing::create_private(kControlWindow)) {}

std::byte* ControlReader::begin(std::uint64_t position, std::uint32_t bytes) {
  if (map_.has(position, bytes)) return nullptr;
  if (position + whole_units(bytes) - released_ > kControlWindow) {
    throw Error(ErrorKind::kProtocol, "control messages exceed their credit");
  }
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
    throw Error(ErrorKind::kProtocol, "a control message of type " + std::to_string(static_cast<int>(prefix.type)) +
                                          " with " + std::to_string(prefix.length) + " bytes");
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
