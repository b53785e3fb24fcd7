// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace atl::infer::safety {

struct SandboxOptions {
  /// Address space that may be added to what the process has now: tensors, stacks of threads (8 MiB each, as a rule) and
  /// what the allocator sets aside. 0: no limit, as libraries of accelerators need that reserve far more than they use.
  std::int64_t memory_bytes = std::int64_t{4} << 30;
  /// One above the highest descriptor that the process can get from now on. Those it has stay open.
  int descriptors = 64;
  /// Who started this process, when it did; 0: not checked. If it is gone already, the process ends here.
  pid_t parent = 0;
  /// Whether ioctl is allowed, which drivers of accelerators need. It reaches whatever driver has an open descriptor.
  bool device = false;
};

/// Takes from the calling process, all its threads and all that it will start what computing does not need. Call it when
/// all libraries are loaded, all descriptors are there and something has been computed: PyTorch looks at the processor in
/// /proc and /sys at its first call, and is slower where it cannot. It cannot be undone.
///
/// From then on the process may read, write, send and receive on the descriptors it has, and get further ones from
/// messages on them; wait for them; map memory, or what its descriptors stand for; start threads, not processes; ask for
/// time, random bytes and its own numbers; end. It is killed by its parent's death, dumps no core, gains no rights, and
/// other processes of its user cannot look into it. Memory can be made executable, because oneDNN computes with
/// code that it writes; nothing is mapped as code from the start. Starting a program, tracing, and reaching into the kernel kill the process;
/// everything else (files, sockets, signals to others) fails with EPERM, which libraries take for a file that they may not
/// read. The size of a file behind a descriptor is known from lseek: stat is among what fails.
///
/// Throws Error(kUnavailable), which names the step, where the kernel does not do this; the process is then to be ended.
void enter_sandbox(const SandboxOptions& options);

}  // namespace atl::infer::safety
