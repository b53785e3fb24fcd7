// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/collectives/types.h"

namespace atl::collectives {

/// The first element that is not finite.
struct NotFinite {
  std::uint64_t index = 0;  ///< of the element; a complex element counts as one
  bool is_nan = false;      ///< else an infinity
};

/// Returns the first non-finite element of `data`, reading at about memory bandwidth; nothing for types without such
/// values.
std::optional<NotFinite> find_not_finite(DataType dtype, std::span<const std::byte> data) noexcept;

}  // namespace atl::collectives
