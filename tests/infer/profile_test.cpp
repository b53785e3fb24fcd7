// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

using Json = nlohmann::json;

Profile small() { return {"cpu", "torch 2.13.0", std::string(64, 'a'), 3, 2, {0.001, 0}, {0.5, 0}, {0.25, 0}, 0.375}; }

std::string refusal(const Json& value) {
  try {
    profile_from_json(value.dump());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(Profile, ComesBackAsItWasWritten) {
  const std::string text = to_json(small());
  const Profile back = profile_from_json(text);
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back, small());
  EXPECT_EQ(profile_from_json(to_json(Profile{})), Profile{});
}

TEST(Profile, NamesWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& path, const Json& value) {
    Json profile = Json::parse(to_json(small()));
    profile[Json::json_pointer(path)] = value;
    EXPECT_NE(refusal(profile).find(text), std::string::npos) << refusal(profile);
  };
  expect("version 2, but this Atoll reads version 1", "/atoll_profile", 2);
  expect("unknown key \"x\"", "/x", 0);
  expect("\"device\" has 300 bytes", "/device", std::string(300, 'd'));
  expect("model is \"../weights\"", "/model", "../weights");
  expect("model is", "/model", std::string(64, 'G'));
  expect("the profile's total is -1", "/total", -1);
  expect("total is 86401", "/total", 86401);
  expect("total is \"1\"", "/total", "1");
  expect("node 1 of the profile: whole is null", "/nodes/1/2", nullptr);
  expect("which is not [fixed, per_row, whole]", "/nodes/0", {1, 2});
  expect("which is not [fixed, per_row, whole]", "/nodes/0", "all");
  expect("\"input\" is -2: give -1 to 99999", "/input", -2);
  expect("\"input\" is 4294967299", "/input", 4294967299);
  expect("\"dim\" is 8: give -1 to 7", "/dim", 8);
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  try {
    profile_from_json(deep);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nested deeper"), std::string::npos);
  }
  Json without = Json::parse(to_json(small()));
  without.erase("runner");
  EXPECT_NE(refusal(without).find("lacks \"runner\""), std::string::npos);
}

}  // namespace
}  // namespace atl::infer
