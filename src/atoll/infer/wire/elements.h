// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace atl::infer::wire {

/// Reads and writes elements of tensors at any alignment, without checks.
template <class T>
T element(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void set_element(std::span<std::byte> bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

}  // namespace atl::infer::wire
