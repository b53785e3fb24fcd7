// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace atl {

/// memcpy for payloads with vector loads and stores of the widest kind this machine has. The ranges must not overlap.
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept;

/// The same with stores that go past the caches, for memory that this core will not read soon or that another core has just read: a line which
/// another core's cache holds costs an invalidation per line otherwise, tens of nanoseconds each where the cores share no cache.
/// Ends with a store fence: what the caller publishes afterwards is seen after the bytes.
void copy_bytes_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept;

}  // namespace atl
