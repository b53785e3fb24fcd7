// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/profile.h"

#include <cstddef>

#include "atoll/plan/json_fields.h"
#include "atoll/plan/text.h"

namespace atl::infer {
namespace {

using plan::Fields;
using plan::Json;
using plan::refuse;

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostText = 256;
constexpr std::size_t kMostNodes = 1'000'000;
constexpr std::size_t kHashDigits = 64;
constexpr double kMostSeconds = 86'400;

double seconds_of(const Json& value, const std::string& name) {
  if (value.is_number()) {
    const double seconds = value.get<double>();
    if (seconds >= 0 && seconds <= kMostSeconds) return seconds;
  }
  refuse(name + " is " + value.dump().substr(0, 80) + ": give seconds from 0 to " + plan::number(kMostSeconds));
}

std::string short_text(Fields& fields, const std::string& key) {
  std::string text = fields.text(key);
  if (text.size() <= kMostText) return text;
  refuse("the profile's \"" + key + "\" has " + std::to_string(text.size()) + " bytes: give at most " +
         std::to_string(kMostText));
}

bool is_hash(const std::string& text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

NodeTime read_node(const Json& value, std::int64_t least) {
  if (!value.is_array() || value.size() != 4 || !value[0].is_number_integer()) {
    refuse("a node of the profile is " + value.dump().substr(0, 80) + ": give [node, fixed, per_row, whole]");
  }
  const bool is_small = value[0].is_number_unsigned() && value[0].get<std::uint64_t>() < kMostNodes;
  const std::int64_t number = is_small ? value[0].get<std::int64_t>() : -1;
  if (number < least) {
    refuse("node " + value[0].dump() + " of the profile does not come after the one before it: give nodes in order, " +
           "numbers from 0 and below " + std::to_string(kMostNodes));
  }
  const std::string name = "node " + std::to_string(number) + " of the profile: ";
  return {static_cast<int>(number),
          {seconds_of(value[1], name + "fixed"), seconds_of(value[2], name + "per_row")},
          seconds_of(value[3], name + "whole")};
}

}  // namespace

std::string to_json(const Profile& profile) {
  Json nodes = Json::array();
  for (const NodeTime& each : profile.nodes) {
    nodes.push_back({each.node, each.rows.fixed, each.rows.per_row, each.whole});
  }
  return Json{{"atoll_profile", kVersion}, {"device", profile.device}, {"runner", profile.runner},
              {"model", profile.model},    {"total", profile.total},   {"nodes", std::move(nodes)}}
      .dump();
}

Profile profile_from_json(const std::string& text) {
  const Json root = plan::parse_json(text, "a profile");
  Fields fields(root, "the profile");
  if (const std::int64_t version = fields.integer("atoll_profile"); version != kVersion) {
    refuse("the profile has version " + std::to_string(version) + ", this is " + std::to_string(kVersion) +
           ": measure the model again");
  }
  Profile profile;
  profile.device = short_text(fields, "device");
  profile.runner = short_text(fields, "runner");
  profile.model = short_text(fields, "model");
  if (!is_hash(profile.model)) {
    refuse("the profile's model is \"" + profile.model + "\": give the hash of its bundle, " +
           std::to_string(kHashDigits) + " hexadecimal digits");
  }
  profile.total = seconds_of(fields.at("total"), "the profile's total");
  const Json& nodes = fields.list("nodes");
  if (nodes.size() > kMostNodes) {
    refuse("the profile has " + std::to_string(nodes.size()) + " nodes: give at most " + std::to_string(kMostNodes));
  }
  for (const Json& each : nodes) {
    const std::int64_t least = profile.nodes.empty() ? 0 : std::int64_t{profile.nodes.back().node} + 1;
    profile.nodes.push_back(read_node(each, least));
  }
  fields.done();
  return profile;
}

}  // namespace atl::infer
