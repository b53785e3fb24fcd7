// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <memory>

namespace atl::sim {

/// Allocates device memory. Freed memory is reused once the stream that was current at its allocation, and every stream
/// named in note_use(), have done the work that was issued on them before it was freed.
c10::Allocator* device_allocator();

/// Resizes `storage` to `bytes`; keeps the contents that fit.
void resize_storage(c10::StorageImpl& storage, std::size_t bytes);

/// Notes that `data`, which came from device_allocator(), is also used on `stream`.
void note_use(const c10::DataPtr& data, const c10::Stream& stream);

/// Allocates host memory that asynchronous copies can use, like pinned memory of a real device.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address) noexcept;

/// Make host memory that this allocator has not made count as pinned, and undo it, with the signatures of CUDA's
/// cudaHostRegister and cudaHostUnregister. Return 0, or 1 if the memory is registered, or is not.
int register_host_memory(void* memory, std::size_t bytes, unsigned flags) noexcept;
int unregister_host_memory(void* memory) noexcept;

/// Returns a reference that keeps the block of pinned memory around `address` alive; null for other memory.
std::shared_ptr<void> pinned_memory(const void* address) noexcept;

}  // namespace atl::sim
