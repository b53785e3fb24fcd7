// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "atoll/core/error.h"

namespace atl::json {

using Json = nlohmann::json;

inline constexpr std::size_t kShownBytes = 80;  // of texts, keys and values in messages

/// What `parse` accepts, and the kind of the error for all else.
struct Rules {
  ErrorKind kind = ErrorKind::kInvalidArgument;
  int levels = 100;              ///< of lists and objects in each other; writing and comparing values recurses
  bool has_unique_keys = false;  ///< refuses an object that has a key twice, of which others may read the other value
};

/// Parses `text`. Throws Error(rules.kind) that names `what` if it is not JSON or breaks the rules; a text that is
/// nested too deeply is refused before it is parsed.
Json parse(std::string_view text, const std::string& what, const Rules& rules = {});

}  // namespace atl::json
