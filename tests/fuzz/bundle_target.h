// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/bundle/bundle.h"

namespace atl::fuzz {

/// A bundle's two files from an untrusted source: the first two bytes are the length of the graph's text. The bundle is
/// rejected, or every weight of the graph is there with the bytes of its type. Returns whether it was read.
inline bool bundle(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return false;
  const std::size_t said = std::to_integer<std::size_t>(bytes[0]) | std::to_integer<std::size_t>(bytes[1]) << 8U;
  bytes = bytes.subspan(2);
  const std::size_t size = std::min(said, bytes.size());
  const std::string text(reinterpret_cast<const char*>(bytes.data()), size);
  const auto owner =
      std::make_shared<std::vector<std::byte>>(bytes.begin() + static_cast<std::ptrdiff_t>(size), bytes.end());
  try {
    const infer::Bundle made = infer::make_bundle(text, {*owner, owner}, "fuzzed");
    for (const infer::Weight& weight : made.graph.weights) {
      const infer::Tensor& type = made.graph.tensors.at(static_cast<std::size_t>(weight.tensor));
      if (made.weights.at(weight.name).bytes.size() != static_cast<std::size_t>(type.bytes())) std::abort();
    }
    if (infer::text_of(made.hash).size() != 64) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
    return false;
  }
}

}  // namespace atl::fuzz
