// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/transport/arena.h"

namespace atl::pytorch {

/// Returns this process's arena, with the budget of ATOLL_ARENA; nullptr if that is 0. Made on first use and never
/// destroyed, because tensors outlive groups; a forked child has one of its own. Any thread. Throws
/// Error(kInvalidArgument) naming the variable.
std::shared_ptr<transport::Arena> process_arena();

/// Returns the allocator of CPU tensors in that arena. When the arena has no memory left, it warns once and takes
/// ordinary memory. Any thread.
const std::shared_ptr<c10::Allocator>& arena_allocator();

/// Returns an uninitialised, contiguous CPU tensor from that allocator; its storage can be resized.
at::Tensor empty_in_arena(at::IntArrayRef sizes, at::ScalarType dtype);

/// The functions of a device's runtime that let its devices copy from and to host memory at full rate, and undo it, as
/// cudaHostRegister and cudaHostUnregister do. They return 0 on success. After a failure `clear_error`, if there is
/// one, takes it back from the runtime, where other code would find it (cudaGetLastError).
struct HostRegistrar {
  int (*add)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*remove)(void* memory) = nullptr;
  int (*clear_error)() = nullptr;
};

/// Sets the registrar of a type of device, before its first group.
void set_host_registrar(c10::DeviceType device, HostRegistrar registrar);

/// Returns `bytes` of host memory through which a device's tensors pass: in this process's arena, where ranks of the
/// same host use it, if the device's runtime registers memory, else the vendor's pinned memory. The tensor must not be
/// freed before the device's copies are done.
at::Tensor staging_memory(std::uint64_t bytes, c10::Device device);

}  // namespace atl::pytorch
