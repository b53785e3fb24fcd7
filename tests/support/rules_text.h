// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "atoll/infer/regions.h"
#include "atoll/infer/row_map.h"

namespace atl::infer {
namespace test {

struct RowMapWriter {
  static std::string listed(const char* name, std::initializer_list<std::pair<const char*, std::int64_t>> values) {
    std::string text = name;
    const char* before = "(";
    for (const auto& [key, value] : values) {
      text += before + std::string(key) + " " + std::to_string(value);
      before = ", ";
    }
    return values.size() == 0 ? text : text + ")";
  }

  std::string operator()(const maps::Identity& /*map*/) const { return "identity"; }
  std::string operator()(const maps::Nothing& /*map*/) const { return "nothing"; }
  std::string operator()(const maps::Window& map) const {
    return listed(
        "window",
        {{"kernel", map.kernel}, {"stride", map.stride}, {"padding", map.padding}, {"dilation", map.dilation}});
  }
  std::string operator()(const maps::Grid& map) const {
    return listed("grid", {{"kernel", map.kernel}, {"stride", map.stride}, {"padding", map.padding}});
  }
  std::string operator()(const maps::Transposed& map) const {
    return listed(
        "transposed",
        {{"kernel", map.kernel}, {"stride", map.stride}, {"padding", map.padding}, {"dilation", map.dilation}});
  }
  std::string operator()(const maps::Blocks& map) const {
    return listed("blocks", {{"inputs", map.inputs},
                             {"outputs", map.outputs},
                             {"low", map.low},
                             {"high", map.high},
                             {"overlap", map.overlap}});
  }
  std::string operator()(const maps::Scale& map) const {
    return listed("scale", {{"times", map.times}, {"over", map.over}});
  }
  std::string operator()(const maps::Stride& map) const {
    return listed("stride", {{"start", map.start}, {"step", map.step}});
  }
  std::string operator()(const maps::Shift& map) const { return listed("shift", {{"offset", map.offset}}); }
  std::string operator()(const maps::Reflect& map) const { return listed("reflect", {{"low", map.low}}); }
  std::string operator()(const maps::Replicate& map) const { return listed("replicate", {{"low", map.low}}); }
  std::string operator()(const maps::Flip& /*map*/) const { return "flip"; }
  std::string operator()(const maps::Wrap& map) const { return listed("wrap", {{"shift", map.shift}}); }
  std::string operator()(const maps::Part& map) const { return listed("part", {{"offset", map.offset}}); }
  std::string operator()(const maps::Prefix& /*map*/) const { return "prefix"; }
};

}  // namespace test

/// "window(kernel 3, stride 1, padding 1, dilation 1)"
inline std::string to_string(const RowMap& map) { return std::visit(test::RowMapWriter(), map); }

inline const char* to_string(Locality locality) noexcept {
  constexpr std::array kNames{"element", "block", "row", "partial", "global"};
  return kNames[static_cast<std::size_t>(locality)];
}

}  // namespace atl::infer
