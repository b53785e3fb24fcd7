// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/json_fields.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;

TEST(JsonFields, LevelsAreThoseOfListsAndObjects) {
  EXPECT_FALSE(is_deeper("", 0));
  EXPECT_FALSE(is_deeper("[1, {\"a\": []}, []]", 3));
  EXPECT_TRUE(is_deeper("[1, {\"a\": []}, []]", 2));
  EXPECT_FALSE(is_deeper("[[], [], [], []]", 2));
  EXPECT_FALSE(is_deeper(R"(["[[[[", "a\"[[[[", "\\"])", 1));  // brackets in texts are none
  EXPECT_TRUE(is_deeper(R"(["\\", [1]])", 1));
}

TEST(JsonFields, DeepTextIsRefusedBeforeItIsRead) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_TRUE(parse_json(nested(100), "x").is_array());
  EXPECT_NE(refusal([&] { parse_json(nested(101), "x"); }).find("x is nested deeper than 100"), std::string::npos);
  EXPECT_NE(refusal([&] { parse_json(nested(2'000'000), "x"); }).find("nested deeper"), std::string::npos);
  EXPECT_NE(refusal([&] { parse_json("{\"a\": " + nested(200) + "}", "x"); }).find("nested deeper"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
