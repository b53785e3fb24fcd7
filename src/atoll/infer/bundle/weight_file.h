// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"

namespace atl::infer {

inline constexpr std::size_t kMaxWeightHeaderBytes = std::size_t{16} << 20;
inline constexpr std::size_t kWeightAlignment = 64;

/// A model's weights in one safetensors file, as bundles have them: tensors lie behind each other without gaps, and all but the
/// padding between them ("_pad0", ...) begin at a multiple of 64 bytes, so that they can be used where they lie. The
/// file may come from a stranger: whatever is wrong with it is Error(kProtocol) that names the file and the tensor.
class WeightFile {
 public:
  /// Maps a file for reading; Error(kUnavailable) where that fails. Its bytes cost no memory until they are used; a file that
  /// gets shorter meanwhile ends the process.
  explicit WeightFile(const std::string& path);
  /// Likewise, of a descriptor, which stays the caller's.
  explicit WeightFile(int descriptor);
  /// Of bytes in memory; `name` stands for the file in messages. They should begin at a multiple of 64.
  WeightFile(HostBytes bytes, std::string name);

  struct Entry {
    std::string name;
    Tensor type;
    HostBytes bytes;
  };
  /// In the order of the file, padding included.
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// The tensors by name; each keeps the whole file mapped.
  std::map<std::string, HostBytes> tensors() const;
  /// The whole file.
  const HostBytes& bytes() const noexcept { return bytes_; }

 private:
  void read_header();
  void place(const nlohmann::json& header, std::size_t data);
  [[noreturn]] void broken(const std::string& what) const;

  HostBytes bytes_;
  std::string name_;
  std::vector<Entry> entries_;
};

}  // namespace atl::infer
