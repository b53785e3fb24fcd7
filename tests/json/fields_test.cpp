// SPDX-License-Identifier: Apache-2.0
#include "atoll/json/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_of.h"

namespace atl::json {
namespace {

using test::error_of;
using testing::HasSubstr;

const Json kPlan = Json::parse(R"({"name": "a", "batch": 8, "rate": 0.5, "frozen": true, "sizes": [1, 2],
  "points": [[1, 2], [3, 0.5]], "nothing": null, "large": 18446744073709551615})");

std::string misread(const std::function<void(Fields&)>& read, ErrorKind kind = ErrorKind::kInvalidArgument) {
  Fields fields(kPlan, "the plan", kind);
  const Error error = error_of([&] { read(fields); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  return error.what();
}

TEST(JsonFields, ReadsEachType) {
  Fields fields(kPlan, "the plan");
  EXPECT_EQ(fields.text("name"), "a");
  EXPECT_EQ(fields.integer("batch"), 8);
  EXPECT_EQ(fields.number("rate"), 0.5);
  EXPECT_EQ(fields.number("batch"), 8);
  EXPECT_TRUE(fields.boolean("frozen"));
  EXPECT_EQ(fields.integers("sizes"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(fields.numbers("sizes"), (std::vector<double>{1, 2}));
  EXPECT_EQ(fields.pairs("points"), (std::vector<std::pair<double, double>>{{1, 2}, {3, 0.5}}));
  EXPECT_EQ(fields.unsigned_integer("large", 0), UINT64_MAX);
  EXPECT_EQ(fields.list("sizes", 2).size(), 2U);
  EXPECT_FALSE(fields.has("nothing"));
  fields.done();
}

TEST(JsonFields, NullCountsAsAbsentWhereThereIsAFallback) {
  Fields fields(kPlan, "the plan");
  EXPECT_EQ(fields.number("nothing", 3), 3);
  EXPECT_EQ(fields.integer("absent", 4), 4);
  EXPECT_EQ(fields.text("nothing", "b"), "b");
  EXPECT_TRUE(fields.boolean("absent", true));
  ASSERT_NE(fields.find("nothing"), nullptr);
  EXPECT_EQ(fields.find("absent"), nullptr);
}

TEST(JsonFields, NamesTheKeyAndTheValue) {
  EXPECT_THAT(misread([](Fields& plan) { plan.text("batch"); }), HasSubstr("the plan's \"batch\" is 8, which is not"));
  EXPECT_THAT(misread([](Fields& plan) { plan.text("nothing"); }), HasSubstr("the plan's \"nothing\" is null"));
  EXPECT_THAT(misread([](Fields& plan) { plan.text("absent"); }), HasSubstr("the plan lacks \"absent\""));
  EXPECT_THAT(misread([](Fields& plan) { plan.integer("rate"); }), HasSubstr("is 0.5, which is not an integer"));
  EXPECT_THAT(misread([](Fields& plan) { plan.integer("large"); }), HasSubstr("which is not an integer"));
  EXPECT_THAT(misread([](Fields& plan) { plan.number("name"); }), HasSubstr("is \"a\", which is not a number"));
  EXPECT_THAT(misread([](Fields& plan) { plan.boolean("batch", false); }), HasSubstr("not true or false"));
  EXPECT_THAT(misread([](Fields& plan) { plan.integers("points"); }), HasSubstr("not a list of integers"));
  EXPECT_THAT(misread([](Fields& plan) { plan.pairs("sizes"); }), HasSubstr("not a list of pairs of numbers"));
  EXPECT_THAT(misread([](Fields& plan) { plan.list("sizes", 1); }), HasSubstr("\"sizes\" has 2 entries: at most 1"));
}

TEST(JsonFields, OnlyAnObjectHasKeys) {
  const Json five = 5;
  EXPECT_THAT(error_of([&] { const Fields fields(five, "the plan"); }).what(),
              HasSubstr("the plan is 5, which is not a JSON object"));
}

TEST(JsonFields, EveryErrorIsOfTheGivenKind) {
  EXPECT_THAT(misread([](Fields& plan) { plan.text("batch"); }, ErrorKind::kProtocol), HasSubstr("not a string"));
  EXPECT_THAT(misread([](Fields& plan) { plan.at("absent"); }, ErrorKind::kProtocol), HasSubstr("lacks"));
  EXPECT_THAT(misread([](Fields& plan) { plan.list("sizes", 0); }, ErrorKind::kProtocol), HasSubstr("at most 0"));
  EXPECT_THAT(misread([](Fields& plan) { plan.done(); }, ErrorKind::kProtocol), HasSubstr("unknown key"));
}

TEST(JsonFields, AnUnknownKeyIsNamedWithTheKnownOnes) {
  const Json object{{"colour", 1}, {"a", 2}};
  Fields fields(object, "the plan");
  fields.has("b");
  fields.at("a");
  EXPECT_THAT(error_of([&] { fields.done(); }).what(),
              HasSubstr("the plan has an unknown key \"colour\"; known keys: a, b"));
}

}  // namespace
}  // namespace atl::json
