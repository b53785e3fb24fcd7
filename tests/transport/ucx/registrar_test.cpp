// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/context.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace atl::transport::ucx {
namespace {

/// Refuses with an error of `kind`, and counts.
struct Refuser {
  explicit Refuser(ErrorKind kind)
      : registrar(
            [this, kind](std::span<std::byte> memory) -> std::unique_ptr<Registration> {
              asked.push_back(memory.size());
              throw Error(kind, "no more locked memory");
            },
            [this](const Error& refusal) { told.emplace_back(refusal.what()); }) {}

  std::vector<std::size_t> asked;
  std::vector<std::string> told;
  Registrar registrar;
};

TEST(UcxRegistrar, AfterARefusalRingsAreUsedWithoutAndThatIsToldOnce) {
  Refuser refuser(ErrorKind::kUnavailable);
  std::array<std::byte, 100> memory{};
  std::array<std::unique_ptr<Registration>, 2> known;
  for (int round = 0; round < 3; ++round) {
    for (auto& each : known) {
      EXPECT_EQ(refuser.registrar.get(each, memory), nullptr);
      EXPECT_TRUE(each == nullptr);
    }
  }
  EXPECT_EQ(refuser.asked, std::vector<std::size_t>{100}) << "no frame pays for another refusal";
  EXPECT_EQ(refuser.told, std::vector<std::string>{"no more locked memory"});
}

TEST(UcxRegistrar, OtherErrorsAreNoRefusal) {
  Refuser refuser(ErrorKind::kInternal);
  std::array<std::byte, 100> memory{};
  std::unique_ptr<Registration> known;
  for (int round = 0; round < 2; ++round) EXPECT_THROW(refuser.registrar.get(known, memory), Error);
  EXPECT_EQ(refuser.asked.size(), 2U);
  EXPECT_TRUE(refuser.told.empty());
}

}  // namespace
}  // namespace atl::transport::ucx
