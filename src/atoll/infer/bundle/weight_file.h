// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"

namespace atl::infer {

inline constexpr std::size_t kMaxWeightHeaderBytes = std::size_t{16} << 20;
inline constexpr std::size_t kWeightAlignment = 64;

/// A model's weights in one safetensors file, as bundles store them: tensors follow each other without gaps, and all
/// but the padding between them ("_pad0", ...) begin at a multiple of 64 bytes, so that they can be used in place. The
/// file may come from a stranger: a malformed one is Error(kProtocol) that names the file and the tensor.
class WeightFile {
 public:
  /// Maps a file for reading; throws Error(kUnavailable) where that fails. Its bytes cost no memory until they are
  /// used. If the file is truncated while it is mapped, the process is killed.
  explicit WeightFile(const std::string& path);
  /// Maps the file of a descriptor, which the caller keeps.
  explicit WeightFile(int descriptor);
  /// Uses bytes in memory, which should begin at a multiple of 64; `name` stands for the file in messages.
  WeightFile(HostBytes bytes, const std::string& name);

  struct Entry {
    std::string name;
    Tensor type;
    HostBytes bytes;
  };
  /// The tensors in the order of the file, including padding.
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// The tensors by name; each keeps the whole file mapped.
  std::map<std::string, HostBytes> tensors() const;
  /// The whole file.
  const HostBytes& bytes() const noexcept { return bytes_; }

 private:
  HostBytes bytes_;
  std::vector<Entry> entries_;
};

}  // namespace atl::infer
