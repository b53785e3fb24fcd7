// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "atoll/core/error.h"

namespace atl {

/// Views the bytes of `text` without a copy.
inline std::span<const std::byte> as_byte_span(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Returns two lower-case hexadecimal digits for each byte.
inline std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

/// Returns the decimal number that all of `text` is; nullopt if it is none, or none that fits.
template <class Number>
std::optional<Number> to_number(std::string_view text) noexcept {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Makes a peer's text safe to log: bytes that are not printable ASCII become question marks.
inline std::string printable(std::string text) {
  const auto is_not_printable = [](unsigned char c) { return c < 0x20 || c >= 0x7f; };
  std::ranges::replace_if(text, is_not_printable, '?');
  return text;
}

/// Appends little-endian integers and length-prefixed strings to a vector.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) noexcept : out_(out) {}

  template <std::unsigned_integral T>
  void integer(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }

  void bytes(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }

  /// Writes a 16-bit length and the characters. Throws Error(kInvalidArgument) when `text` is longer than `limit`.
  void string(std::string_view text, std::size_t limit) {
    if (text.size() > limit || text.size() > 0xffff) {
      throw Error(ErrorKind::kInvalidArgument, "\"", text.substr(0, 64), "...\" has ", text.size(),
                  " characters; at most ", limit, " are allowed");
    }
    integer(static_cast<std::uint16_t>(text.size()));
    bytes(as_byte_span(text));
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads what ByteWriter wrote. Every read is checked against the end; a short or oversized field is Error(kProtocol)
/// that names `what` and the field's position. Borrows the bytes.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> data, const char* what) noexcept : data_(data), what_(what) {}

  template <std::unsigned_integral T>
  T integer() {
    const auto field = bytes(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<std::uint64_t>(field[i]) << (8 * i);
    return static_cast<T>(value);
  }

  std::span<const std::byte> bytes(std::size_t count) {
    if (count > data_.size() - position_) fail("ends too early");
    const auto field = data_.subspan(position_, count);
    position_ += count;
    return field;
  }

  std::string string(std::size_t limit) {
    const std::size_t length = integer<std::uint16_t>();
    if (length > limit)
      fail("has a string of " + std::to_string(length) + " bytes (limit " + std::to_string(limit) + ")");
    const auto field = bytes(length);
    return {reinterpret_cast<const char*>(field.data()), field.size()};
  }

  std::size_t left() const noexcept { return data_.size() - position_; }

  /// Throws unless everything was read.
  void expect_end() const {
    if (left() != 0) fail("has " + std::to_string(left()) + " bytes too many");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::kProtocol, what_, " ", why, " at byte ", position_);
  }

  std::span<const std::byte> data_;
  const char* what_;
  std::size_t position_ = 0;
};

}  // namespace atl
