// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace atl::transport {

inline constexpr std::size_t kMinKeyBytes = 16;
inline constexpr std::size_t kMaxKeyBytes = 4096;

/// Returns a key without the line ends that follow it, of any number and kind, which are not part of it: a copy that
/// went through an editor is the same key.
std::span<const std::byte> without_line_ends(std::span<const std::byte> key) noexcept;

/// Returns the bytes of a key file, without_line_ends(). Throws Error(kUnavailable) when it cannot be read, and
/// kInvalidArgument when users other than its owner may read or change it, or it is shorter than `least` or longer than
/// kMaxKeyBytes.
std::vector<std::byte> read_key_file(const std::string& path, std::size_t least = kMinKeyBytes);

/// Throws Error(kInvalidArgument) when users other than the file's owner may read or change it, kUnavailable when it
/// cannot be read.
void require_private_file(const std::string& path);

/// Creates a file that only its owner may read, with 32 random bytes as 64 hexadecimal digits and a line end. Returns
/// the key as read_key_file does. Throws Error(kInvalidArgument) when the path already exists, which stays unchanged,
/// and kUnavailable when it cannot be written.
std::vector<std::byte> make_key_file(const std::string& path);

}  // namespace atl::transport
