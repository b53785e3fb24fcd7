// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <memory>

namespace atl::sim {

/// Device memory is given back when the stream that was current at its allocation, and every stream named by note_use, have
/// done what was issued on them by the time it was freed.
c10::Allocator* device_allocator();

/// Gives `storage` room for `bytes`; keeps what it holds as far as it fits.
void resize_storage(c10::StorageImpl& storage, std::size_t bytes);

/// `data` came from device_allocator() and is used on `stream` too.
void note_use(const c10::DataPtr& data, const c10::Stream& stream);

/// Host memory that copies need not wait for (pinned memory of a real device).
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address) noexcept;

/// Keeps the block of pinned memory that `address` lies in, whoever frees it meanwhile; null for other memory.
std::shared_ptr<void> pinned_memory(const void* address) noexcept;

}  // namespace atl::sim
