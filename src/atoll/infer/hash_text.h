// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace atl::infer {

/// Hexadecimal digits of a bundle's hash as a text.
inline constexpr std::size_t kHashDigits = 64;

/// Whether `text` has the form of a bundle's hash.
inline bool is_hash_text(std::string_view text) noexcept {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace atl::infer
