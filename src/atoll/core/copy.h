// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace atl {

/// Copies a payload with the widest vector loads and stores of this machine. The ranges must not overlap.
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept;

/// Does the same with stores that bypass the caches, for memory that this core will not read soon or that another core
/// has just read: otherwise each line in another core's cache costs an invalidation, tens of nanoseconds where the
/// cores share no cache. Ends with a store fence: what the caller publishes afterwards is seen after the bytes.
void copy_bytes_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept;

}  // namespace atl
