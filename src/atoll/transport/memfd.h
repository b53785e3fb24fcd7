// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "atoll/core/fd.h"

namespace atl::transport {

/// Creates anonymous memory of `bytes` zeros that can be passed to another process and can neither shrink nor grow. It
/// ends with the last process that holds or maps it. Its pages are allocated when they are first touched, but at once
/// where the system may still refuse them then (vm.overcommit_memory=2), which would end the process with SIGBUS.
/// Throws Error(kUnavailable).
Fd make_sealed_memfd(const char* name, std::size_t bytes);

/// Allocates the pages of the first `bytes` bytes. Throws Error(kUnavailable).
void allocate_pages(const Fd& memory, std::size_t bytes);

/// Throws Error(kProtocol) unless `memory` is a memfd of exactly `bytes` whose size is sealed: only then can no peer
/// make an access to its mapping fault.
void check_sealed_memfd(const Fd& memory, std::size_t bytes);

/// Returns a second descriptor of the same memory, to be passed to a peer. Throws Error(kUnavailable).
Fd duplicate(const Fd& memory);

}  // namespace atl::transport
