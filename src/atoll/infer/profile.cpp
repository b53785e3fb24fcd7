// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/profile.h"

#include <cstddef>

#include "atoll/infer/graph.h"
#include "atoll/infer/hash_text.h"
#include "atoll/json/fields.h"
#include "atoll/plan/text.h"

namespace atl::infer {
namespace {

using json::Fields;
using json::Json;

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMaxText = 256;
constexpr std::size_t kMaxProfileNodes = 1'000'000;
constexpr double kMaxSeconds = 86'400;

double seconds_of(const Json& value, const std::string& name) {
  if (value.is_number()) {
    const double seconds = value.get<double>();
    if (seconds >= 0 && seconds <= kMaxSeconds) return seconds;
  }
  json::refuse(value, name, "a number of seconds from 0 to " + plan::number(kMaxSeconds));
}

std::string short_text(Fields& fields, const std::string& key) {
  std::string text = fields.text(key);
  if (text.size() <= kMaxText) return text;
  plan::refuse("the profile's \"" + key + "\" has " + std::to_string(text.size()) + " bytes: give at most " +
               std::to_string(kMaxText));
}

int index_of(Fields& fields, const char* key, std::int64_t most) {
  const std::int64_t value = fields.integer(key);
  if (value >= -1 && value < most) return static_cast<int>(value);
  plan::refuse(std::string("the profile's \"") + key + "\" is " + std::to_string(value) + ": give -1 to " +
               std::to_string(most - 1));
}

void read_node(const Json& value, Profile& profile) {
  const std::string name = "node " + std::to_string(profile.whole.size()) + " of the profile";
  if (!value.is_array() || value.size() != 3) json::refuse(value, name, "[fixed, per_row, whole]");
  profile.fixed.push_back(seconds_of(value[0], name + ": fixed"));
  profile.per_row.push_back(seconds_of(value[1], name + ": per_row"));
  profile.whole.push_back(seconds_of(value[2], name + ": whole"));
}

}  // namespace

std::string to_json(const Profile& profile) {
  Json nodes = Json::array();
  for (std::size_t i = 0; i < profile.whole.size(); ++i) {
    nodes.push_back({profile.fixed[i], profile.per_row[i], profile.whole[i]});
  }
  return Json{{"atoll_profile", kVersion}, {"device", profile.device},      {"runner", profile.runner},
              {"model", profile.model},    {"input", profile.input_tensor}, {"dim", profile.dim},
              {"total", profile.total},    {"nodes", std::move(nodes)}}
      .dump();
}

Profile profile_from_json(const std::string& text) {
  const Json root = json::parse(text, "a profile");
  Fields fields(root, "the profile");
  if (const std::int64_t version = fields.integer("atoll_profile"); version != kVersion) {
    plan::refuse("the profile has version " + std::to_string(version) + ", but this Atoll reads version " +
                 std::to_string(kVersion) + ": measure the model again");
  }
  Profile profile;
  profile.device = short_text(fields, "device");
  profile.runner = short_text(fields, "runner");
  profile.model = short_text(fields, "model");
  if (!profile.model.empty() && !is_hash_text(profile.model)) {
    plan::refuse("the profile's model is \"" + profile.model + "\": give the hash of its bundle, " +
                 std::to_string(kHashDigits) + " hexadecimal digits");
  }
  profile.input_tensor = index_of(fields, "input", static_cast<std::int64_t>(kMaxTensors));
  profile.dim = index_of(fields, "dim", static_cast<std::int64_t>(kMaxDims));
  profile.total = seconds_of(fields.at("total"), "the profile's total");
  for (const Json& each : fields.list("nodes", kMaxProfileNodes)) read_node(each, profile);
  fields.done();
  return profile;
}

}  // namespace atl::infer
