// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/bundle/weight_file.h"

namespace atl::fuzz {

/// A weight file from an untrusted source: it is rejected, or its tensors lie in it one after another and have the
/// bytes of their types.
inline void weight_file(std::span<const std::byte> bytes) {
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  try {
    const infer::WeightFile file({*owner, owner}, "fuzzed");
    const std::byte* end = nullptr;
    for (const infer::WeightFile::Entry& entry : file.entries()) {
      if (entry.bytes.bytes.size() != static_cast<std::size_t>(entry.type.bytes())) std::abort();
      if (end != nullptr && entry.bytes.bytes.data() != end) std::abort();
      end = entry.bytes.bytes.data() + entry.bytes.bytes.size();
      if (end > owner->data() + owner->size()) std::abort();
    }
    if (file.tensors().size() != file.entries().size()) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
  }
}

}  // namespace atl::fuzz
