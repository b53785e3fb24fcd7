// SPDX-License-Identifier: Apache-2.0
#include "atoll/json/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_of.h"

namespace atl::json {
namespace {

using test::error_of;
using testing::HasSubstr;

std::string refusal(const std::string& text, const Rules& rules = {}) {
  const Error error = error_of([&] { parse(text, "the plan", rules); });
  EXPECT_EQ(error.kind(), rules.kind) << error.what();
  return error.what();
}

std::string nested(std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(ParseJson, LevelsAreThoseOfListsAndObjects) {
  const std::string three = "[1, {\"a\": []}, []]";
  EXPECT_EQ(parse(three, "x", {.levels = 3}).size(), 3U);
  EXPECT_THAT(refusal(three, {.levels = 2}), HasSubstr("the plan is nested deeper than 2 levels"));
  EXPECT_EQ(parse("[[], [], [], []]", "x", {.levels = 2}).size(), 4U);
  EXPECT_EQ(parse(R"(["[[[[", "a\"[[[[", "\\"])", "x", {.levels = 1}).size(), 3U);  // brackets in texts are none
  EXPECT_THAT(refusal(R"(["\\", [1]])", {.levels = 1}), HasSubstr("nested deeper"));
}

TEST(ParseJson, DeepTextIsRefusedBeforeItIsRead) {
  EXPECT_TRUE(parse(nested(100), "x").is_array());
  EXPECT_THAT(refusal(nested(101)), HasSubstr("the plan is nested deeper than 100"));
  EXPECT_THAT(refusal(nested(2'000'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal("{\"a\": " + nested(200) + "}"), HasSubstr("nested deeper"));
}

TEST(ParseJson, TextThatIsNotJsonIsShown) {
  EXPECT_THAT(refusal(""), HasSubstr("the plan is not JSON: "));
  EXPECT_THAT(refusal("{\"a\": 1,"), HasSubstr("the plan is not JSON: {\"a\": 1,"));
  EXPECT_LT(refusal(std::string(10'000, 'x')).size(), 200U);
  EXPECT_THAT(refusal("nan", {.kind = ErrorKind::kProtocol}), HasSubstr("is not JSON: nan"));
}

TEST(ParseJson, AKeyCountsInItsOwnObject) {
  constexpr Rules kUnique{.kind = ErrorKind::kProtocol, .has_unique_keys = true};
  const std::string twice = R"({"b": {"a": 1, "a": 2}})";
  EXPECT_THAT(refusal(twice, kUnique), HasSubstr("the plan has the key \"a\" twice in one object"));
  EXPECT_EQ(parse(twice, "x")["b"]["a"], 2);
  EXPECT_EQ(parse(R"([{"a": {"a": 1}}, {"a": {"a": 2}}])", "x", kUnique).size(), 2U);
}

}  // namespace
}  // namespace atl::json
