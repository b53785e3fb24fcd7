// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace atl {

/// Creates a file that only this user may read, replacing any file of that name. Follows no links, so that in a shared
/// folder no other user can redirect the text. Throws Error(kUnavailable).
void write_private_file(const std::string& path, std::string_view text);

}  // namespace atl
