// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace atl::transport {

inline constexpr std::size_t kMinKeyBytes = 16;
inline constexpr std::size_t kMaxKeyBytes = 4096;

/// A key without the ends of lines behind it, however many and of whichever system, which are no part of it: both ends of a
/// connection leave them out, so that a copy that went through an editor is the same key.
std::span<const std::byte> without_line_ends(std::span<const std::byte> key) noexcept;

/// The bytes of a key file, without_line_ends(). Error(kUnavailable) where it cannot be read,
/// kInvalidArgument where others than its owner may read or change it, and where it is shorter than `least` or longer
/// than kMaxKeyBytes.
std::vector<std::byte> read_key_file(const std::string& path, std::size_t least = kMinKeyBytes);

/// The same of any file: Error(kInvalidArgument) where others than its owner may read or change it, kUnavailable where
/// it cannot be read.
void require_private_file(const std::string& path);

/// Makes a file that only its owner may read, with 32 random bytes as 64 hexadecimal digits and a line's end. Returns
/// the key as read_key_file does. Error(kInvalidArgument) where there is something already, which stays as it is;
/// kUnavailable where it cannot be written.
std::vector<std::byte> make_key_file(const std::string& path);

}  // namespace atl::transport
