// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/collectives/types.h"

namespace atl::collectives {

/// The first element that is no finite number.
struct NotFinite {
  std::uint64_t index = 0;  ///< of the element; of a complex one, whichever of its parts it is
  bool is_nan = false;      ///< else an infinity
};

/// Reads all of `data` where there is none, at about the rate of memory. Nothing for types without such values.
std::optional<NotFinite> find_not_finite(DataType dtype, std::span<const std::byte> data) noexcept;

}  // namespace atl::collectives
