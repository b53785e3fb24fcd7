// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/plan.h"

#include "atoll/core/error.h"
#include "atoll/infer/argument_json.h"
#include "atoll/json/fields.h"

namespace atl::infer {
namespace {

using json::Fields;

constexpr json::Rules kDivisionRules{.kind = ErrorKind::kProtocol, .levels = 8};  // it has 3
constexpr std::int64_t kMaxInteger = std::int64_t{1} << 30;                       // fits an int

[[noreturn]] void bad_division(const std::string& what) { throw Error(ErrorKind::kProtocol, "a division's " + what); }

int small(Fields& fields, const char* key) {
  const std::int64_t value = integer_from(fields.at(key), fields.name_of(key));
  if (value < -1 || value > kMaxInteger)
    bad_division(std::string(key) + " is " + std::to_string(value) + ": give -1 to 2^30");
  return static_cast<int>(value);
}

plan::Share share_from(const Json& value) {
  if (!value.is_array() || value.size() != 4)
    bad_division("share is not a list of four rows: [robot begin, robot end, server begin, server end]");
  const auto row = [&](std::size_t i) { return integer_from(value[i], "a division's share"); };
  return {{row(0), row(1)}, {row(2), row(3)}};
}

}  // namespace

std::string to_json(const Plan& plan) {
  Json shares = Json::array();
  for (const plan::Share& share : plan.shares) {
    shares.push_back({share.robot.begin, share.robot.end, share.server.begin, share.server.end});
  }
  return Json{{"input", plan.input_tensor}, {"dim", plan.dim}, {"chunks", plan.chunks}, {"shares", std::move(shares)}}
      .dump();
}

Plan plan_from_json(const std::string& text) {
  const Json parsed = json::parse(text, "a division", kDivisionRules);
  Fields fields(parsed, "a division", kDivisionRules.kind);
  Plan plan{small(fields, "input"), small(fields, "dim"), {}, small(fields, "chunks")};
  for (const Json& share : fields.list("shares")) plan.shares.push_back(share_from(share));
  return plan;
}

}  // namespace atl::infer
