// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

using nlohmann::json;

Profile small() {
  return {"cpu", "torch 2.13.0", std::string(64, 'a'), {{0, {0.001, 0.5}, 0.25}, {3, {0, 0}, 0}}, 0.375};
}

std::string refusal(const json& value) {
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
  EXPECT_EQ(back.device, "cpu");
  EXPECT_EQ(back.model, std::string(64, 'a'));
  ASSERT_EQ(back.nodes.size(), 2U);
  EXPECT_EQ(back.nodes[1].node, 3);
  EXPECT_EQ(back.nodes[0].rows.fixed, 0.001);
  EXPECT_EQ(back.nodes[0].rows.per_row, 0.5);
  EXPECT_EQ(back.nodes[0].whole, 0.25);
  EXPECT_EQ(back.total, 0.375);
  Profile empty = small();
  empty.nodes.clear();
  EXPECT_TRUE(profile_from_json(to_json(empty)).nodes.empty());
}

TEST(Profile, NamesWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& path, const json& value) {
    json profile = json::parse(to_json(small()));
    profile[json::json_pointer(path)] = value;
    EXPECT_NE(refusal(profile).find(text), std::string::npos) << refusal(profile);
  };
  expect("version 2, this is 1", "/atoll_profile", 2);
  expect("unknown key \"x\"", "/x", 0);
  expect("\"device\" has 300 bytes", "/device", std::string(300, 'd'));
  expect("model is \"../weights\"", "/model", "../weights");
  expect("model is", "/model", std::string(64, 'G'));
  expect("the profile's total is -1", "/total", -1);
  expect("total is 86401", "/total", 86401);
  expect("total is \"1\"", "/total", "1");
  expect("node 3 of the profile: whole is null", "/nodes/1/3", nullptr);
  expect("node 0 of the profile does not come after", "/nodes/1/0", 0);
  expect("node -1 of the profile", "/nodes/0/0", -1);
  expect("node 1000000 of the profile", "/nodes/1/0", 1'000'000);
  expect("node 18446744073709551615 of", "/nodes/1/0", json::parse("18446744073709551615"));
  expect("give [node, fixed, per_row, whole]", "/nodes/0", {1, 2, 3});
  expect("give [node, fixed, per_row, whole]", "/nodes/0", "all");
  json without = json::parse(to_json(small()));
  without.erase("runner");
  EXPECT_NE(refusal(without).find("lacks \"runner\""), std::string::npos);
}

}  // namespace
}  // namespace atl::infer
