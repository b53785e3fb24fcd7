// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/memory.h"

#include <c10/core/CPUAllocator.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace atl::pytorch {
namespace {

// The distance from the start of the tensor's first element to the end of its last one.
std::size_t extent_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<std::size_t>((last + 1) * tensor.element_size());
}

// Makes the kernel OR the word with 0 atomically, which changes no value and fails if the memory cannot be written.
bool can_write(std::uintptr_t address) {
  std::uint32_t no_waiters = 0;
  const auto word = address & ~std::uintptr_t{3};
  const long done = ::syscall(SYS_futex, &no_waiters, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, nullptr, word,
                              FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0));
  return done >= 0 || errno != EFAULT;
}

}  // namespace

bool has_memory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  if (tensor.numel() == 0) return true;
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto first = static_cast<std::size_t>(tensor.storage_offset() * tensor.element_size());
  return storage->_mutable_data_ptr_no_checks().get() != nullptr && storage->nbytes() >= first + extent_bytes(tensor);
}

bool is_writable(const at::Tensor& tensor) {
  static const auto torchs_own = c10::GetDefaultCPUAllocator()->raw_deleter();
  const std::size_t bytes = extent_bytes(tensor);
  if (bytes == 0 || !tensor.device().is_cpu() || tensor.storage().data_ptr().get_deleter() == torchs_own) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return can_write(begin) && can_write(begin + bytes - 1);
}

}  // namespace atl::pytorch
