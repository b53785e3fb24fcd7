// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace atl {
namespace {

constexpr const char* kVariable = "ATOLL_TEST_SETTING";

class Environment : public ::testing::Test {
 protected:
  ~Environment() override { ::unsetenv(kVariable); }
  static void set(const char* value) { ::setenv(kVariable, value, 1); }
  static int whole() { return number_setting(kVariable, 7, 1, 9, "a whole number from 1 to 9"); }
  static std::size_t chosen() { return choice_setting(kVariable, {"warn", "raise"}, "warn or raise"); }
};

TEST_F(Environment, GivesTheUsualValueUnlessSet) {
  EXPECT_EQ(environment(kVariable), "");
  EXPECT_EQ(whole(), 7);
  EXPECT_EQ(chosen(), 0U);
  set("");
  EXPECT_EQ(whole(), 7);
  EXPECT_EQ(chosen(), 0U);
}

TEST_F(Environment, ReadsNumbersAndChoices) {
  set("9");
  EXPECT_EQ(whole(), 9);
  set("raise");
  EXPECT_EQ(chosen(), 2U);
  set("2.5");
  EXPECT_EQ(number_setting(kVariable, 1.0, 0.5, 9.0, "a number from 0.5 to 9"), 2.5);
}

TEST_F(Environment, NamesTheVariableItsValueAndWhatIsWanted) {
  for (const char* value : {"10", "3x", "x", " 3"}) {
    set(value);
    try {
      whole();
      FAIL() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(error.what(), std::string("ATOLL_TEST_SETTING=\"") + value + "\": expected a whole number from 1 to 9");
    }
    EXPECT_THROW(chosen(), Error);
  }
}

}  // namespace
}  // namespace atl
