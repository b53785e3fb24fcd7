// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace atl {

/// Makes a file that only this user may read, in place of what has that name; follows no link, so that in a folder for all nobody leads the
/// text elsewhere. Throws Error(kUnavailable).
void write_private_file(const std::string& path, std::string_view text);

}  // namespace atl
