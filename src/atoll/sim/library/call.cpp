// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/call.h"

#include <array>

namespace atl::sim {
namespace {

struct TypeFacts {
  const char* name;
  std::size_t bytes;
};
constexpr std::array<TypeFacts, 10> kTypes{{{"bool", 1},
                                            {"uint8", 1},
                                            {"int8", 1},
                                            {"int32", 4},
                                            {"int64", 8},
                                            {"float16", 2},
                                            {"bfloat16", 2},
                                            {"float32", 4},
                                            {"float64", 8},
                                            {"bytes", 1}}};
constexpr std::array<const char*, 11> kOperations{"all_reduce",     "reduce",     "broadcast", "all_gather",
                                                  "reduce_scatter", "all_to_all", "gather",    "scatter",
                                                  "barrier",        "send",       "recv"};
constexpr std::array<const char*, 5> kReductions{"sum", "avg", "product", "min", "max"};

// Values may come from another process, so they are not trusted to be in range.
template <typename Table, typename Value>
const auto& entry(const Table& table, Value value, const typename Table::value_type& other) {
  const auto index = static_cast<std::size_t>(value);
  return index < table.size() ? table[index] : other;
}
constexpr const char* kUnknown = "unknown";
constexpr TypeFacts kUnknownType{"unknown", 1};

}  // namespace

const char* to_string(Operation operation) noexcept { return entry(kOperations, operation, kUnknown); }
const char* to_string(DataType dtype) noexcept { return entry(kTypes, dtype, kUnknownType).name; }
const char* to_string(ReduceOp op) noexcept { return entry(kReductions, op, kUnknown); }
std::size_t element_size(DataType dtype) noexcept { return entry(kTypes, dtype, kUnknownType).bytes; }

}  // namespace atl::sim
