// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace atl::infer {

/// The number of hexadecimal digits in a bundle's hash.
inline constexpr std::size_t kHashDigits = 64;

/// Returns whether `text` has the form of a bundle's hash.
inline bool is_hash_text(std::string_view text) noexcept {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace atl::infer
