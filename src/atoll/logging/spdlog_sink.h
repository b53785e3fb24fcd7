// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::logging {

/// Sends Atoll's log lines to spdlog: "[2025-01-31 12:00:00.000] [atoll 4711] [warning] message" on standard error,
/// from the level that ATOLL_LOG_LEVEL names (debug, info, warning, error, off; warning when it is not set). Call it at
/// start-up; another call reads the variable again. Throws Error(kInvalidArgument) naming an unknown level.
void install_spdlog_sink();

}  // namespace atl::logging
