// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace atl::infer::safety {

struct SandboxOptions {
  /// Address space that may be added to what the process has now: tensors, thread stacks (usually 8 MiB each) and the
  /// allocator's reserves. 0: no limit, for libraries of accelerators that reserve far more than they use.
  std::int64_t memory_bytes = std::int64_t{4} << 30;
  /// One above the highest descriptor that the process can get from now on. Open ones stay open.
  int descriptors = 64;
  /// The parent at the time this process was started; 0: not checked. If it has exited, enter_sandbox() throws.
  pid_t parent = 0;
  /// Whether to allow ioctl, which drivers of accelerators need. It reaches any driver with an open descriptor.
  bool device = false;
};

/// Restricts the calling process, with all its present and future threads, to what computing needs. Call it when all
/// libraries are loaded, all descriptors are open and something has been computed: PyTorch reads the processor's
/// features from /proc and /sys at its first call, and is slower where it cannot. It cannot be undone.
///
/// From then on the process may read, write, send and receive on its descriptors, receive further ones in messages, and
/// wait for them; map memory and the files of its descriptors; start threads, but not processes; query time, random
/// bytes and its own ids; and exit. It is killed when its parent dies, dumps no core, gains no privileges, and other
/// processes of its user cannot inspect it. Memory can be made executable, because oneDNN runs code that it generates,
/// but cannot be mapped as executable in the first place. Starting a program, tracing and reaching into the kernel kill
/// the process. Everything else (files, sockets, signals to other processes) fails with EPERM, which libraries treat as
/// a file that they may not read. Stat fails too; lseek gives the size of a descriptor's file.
///
/// Throws Error(kUnavailable), which names the step, if the kernel does not support this; the process must then exit.
void enter_sandbox(const SandboxOptions& options);

}  // namespace atl::infer::safety
