// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/few_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "atoll/core/error.h"

namespace atl::infer::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "elements and places are read in place");

constexpr std::size_t kMaxValues = 16;
constexpr std::size_t kBlock = 256;
constexpr std::uint8_t kNoPlace = 0xff;

[[noreturn]] void bad_few_values(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "a message of few values cannot be unpacked: " + what);
}

unsigned bits_for(std::size_t values) noexcept { return values <= 1 ? 0 : values <= 2 ? 1 : values <= 4 ? 2 : 4; }

std::size_t places_bytes(std::size_t elements, unsigned bits) noexcept {
  return elements / 8 * bits + (elements % 8 * bits + 7) / 8;
}

// Concatenates the low `kBits` bits of the eight bytes of `x`, joining neighbours three times.
template <unsigned kBits>
std::uint64_t gathered(std::uint64_t x) noexcept {
  constexpr std::uint64_t kPairs = 0x0001000100010001 * ((1U << (2 * kBits)) - 1);
  constexpr std::uint64_t kFours = 0x0000000100000001 * ((std::uint64_t{1} << (4 * kBits)) - 1);
  x = (x | (x >> (8 - kBits))) & kPairs;
  x = (x | (x >> (16 - 2 * kBits))) & kFours;
  return x | (x >> (32 - 4 * kBits));
}

// The inverse of gathered().
template <unsigned kBits>
std::uint64_t spread(std::uint64_t x) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101 * ((1U << kBits) - 1);
  constexpr std::uint64_t kPairs = 0x0001000100010001 * ((1U << (2 * kBits)) - 1);
  constexpr std::uint64_t kFours = 0x0000000100000001 * ((std::uint64_t{1} << (4 * kBits)) - 1);
  x = (x | (x << (32 - 4 * kBits))) & kFours;
  x = (x | (x << (16 - 2 * kBits))) & kPairs;
  return (x | (x << (8 - kBits))) & kOnes;
}

// Writes each element's place in the table; returns the number of elements before the first without a place.
template <class U>
std::size_t find_places(const U* __restrict values, std::size_t count, const U* table, std::size_t entries,
                        std::uint8_t* __restrict places) {
  std::memset(places, kNoPlace, count);
  for (std::size_t entry = 0; entry < entries; ++entry) {
    const U value = table[entry];
    const auto place = static_cast<std::uint8_t>(entry);
    for (std::size_t i = 0; i < count; ++i) places[i] = values[i] == value ? place : places[i];
  }
  std::uint8_t any = 0;
  for (std::size_t i = 0; i < count; ++i) any = static_cast<std::uint8_t>(any | places[i]);
  if (any < kMaxValues) return count;
  return static_cast<std::size_t>(std::find(places, places + count, kNoPlace) - places);
}

// `places` has zeros up to a multiple of 8.
template <unsigned kBits>
void write_places(const std::vector<std::uint8_t>& places, std::span<std::byte> out) {
  for (std::size_t at = 0, to = 0; to < out.size(); at += 8, to += kBits) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, places.data() + at, 8);
    eight = gathered<kBits>(eight);
    std::memcpy(out.data() + to, &eight, std::min<std::size_t>(kBits, out.size() - to));
  }
}

template <class U>
std::optional<std::vector<std::byte>> pack_as(std::span<const std::byte> bytes) {
  const std::size_t elements = bytes.size() / sizeof(U);
  std::vector<std::uint8_t> places((elements + 7) / 8 * 8);
  std::array<U, kMaxValues> table{};
  std::array<U, kBlock> values;
  std::size_t entries = 0;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    std::memcpy(values.data(), bytes.data() + begin * sizeof(U), count * sizeof(U));
    for (;;) {
      const std::size_t found = find_places(values.data(), count, table.data(), entries, places.data() + begin);
      if (found == count) break;
      if (entries == kMaxValues) return std::nullopt;
      table[entries++] = values[found];
    }
  }
  const unsigned bits = bits_for(entries);
  const std::size_t head = 1 + entries * sizeof(U);
  std::vector<std::byte> packed(head + places_bytes(elements, bits));
  packed[0] = static_cast<std::byte>(entries);
  std::memcpy(packed.data() + 1, table.data(), entries * sizeof(U));
  const std::span<std::byte> out = std::span(packed).subspan(head);
  switch (bits) {
    case 1: write_places<1>(places, out); break;
    case 2: write_places<2>(places, out); break;
    case 4: write_places<4>(places, out); break;
    default: break;
  }
  return packed;
}

template <unsigned kBits, class U>
void read_places(std::span<const std::byte> places, const std::array<U, kMaxValues>& table, std::size_t entries,
                 std::span<std::byte> out) {
  const std::size_t elements = out.size() / sizeof(U);
  std::uint8_t most = 0;
  for (std::size_t at = 0, from = 0; at < elements; at += 8, from += kBits) {
    std::uint64_t packed = 0;
    std::memcpy(&packed, places.data() + from, std::min<std::size_t>(kBits, places.size() - from));
    packed = spread<kBits>(packed);
    std::array<std::uint8_t, 8> eight;
    std::memcpy(eight.data(), &packed, 8);
    std::array<U, 8> values;
    for (std::size_t i = 0; i < 8; ++i) {
      most = std::max(most, eight[i]);
      values[i] = table[eight[i]];
    }
    const std::size_t count = std::min<std::size_t>(8, elements - at);
    std::memcpy(out.data() + at * sizeof(U), values.data(), count * sizeof(U));
    for (std::size_t i = count; i < 8; ++i) {
      if (eight[i] != 0) bad_few_values("bits after the last element are not 0");
    }
  }
  if (most >= entries)
    bad_few_values("an element is at place " + std::to_string(most) + " of " + std::to_string(entries));
}

template <class U>
void unpack_as(std::span<const std::byte> packed, std::span<std::byte> out) {
  const std::size_t entries = packed.empty() ? 0 : std::to_integer<std::size_t>(packed[0]);
  if (entries == 0 || entries > kMaxValues)
    bad_few_values(std::to_string(entries) + " distinct values: 1 to 16 are allowed");
  const unsigned bits = bits_for(entries);
  const std::size_t head = 1 + entries * sizeof(U);
  const std::size_t expected = head + places_bytes(out.size() / sizeof(U), bits);
  if (packed.size() != expected) {
    bad_few_values("it has " + std::to_string(packed.size()) + " bytes instead of " + std::to_string(expected));
  }
  std::array<U, kMaxValues> table{};
  std::memcpy(table.data(), packed.data() + 1, entries * sizeof(U));
  const std::span<const std::byte> places = packed.subspan(head);
  switch (bits) {
    case 1: return read_places<1>(places, table, entries, out);
    case 2: return read_places<2>(places, table, entries, out);
    case 4: return read_places<4>(places, table, entries, out);
    default: break;
  }
  for (std::size_t at = 0; at < out.size(); at += sizeof(U)) std::memcpy(out.data() + at, table.data(), sizeof(U));
}

}  // namespace

std::optional<std::vector<std::byte>> pack_few_values(std::size_t element_bytes, std::span<const std::byte> bytes) {
  switch (element_bytes) {
    case 1: return pack_as<std::uint8_t>(bytes);
    case 2: return pack_as<std::uint16_t>(bytes);
    case 4: return pack_as<std::uint32_t>(bytes);
    default: return pack_as<std::uint64_t>(bytes);
  }
}

void unpack_few_values(std::size_t element_bytes, std::span<const std::byte> packed, std::span<std::byte> out) {
  switch (element_bytes) {
    case 1: return unpack_as<std::uint8_t>(packed, out);
    case 2: return unpack_as<std::uint16_t>(packed, out);
    case 4: return unpack_as<std::uint32_t>(packed, out);
    default: return unpack_as<std::uint64_t>(packed, out);
  }
}

std::size_t most_few_values_bytes(std::size_t element_bytes, std::size_t elements) noexcept {
  return 1 + kMaxValues * element_bytes + places_bytes(elements, 4);
}

}  // namespace atl::infer::wire
