// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/plan.h"

#include "atoll/core/error.h"
#include "atoll/infer/argument_json.h"
#include "atoll/plan/json_fields.h"

namespace atl::infer {
namespace {

constexpr int kMaxDivisionDepth = 8;                         // a well-formed one has 3
constexpr std::int64_t kMaxInteger = std::int64_t{1} << 30;  // fits an int

[[noreturn]] void bad_division(const std::string& what) { throw Error(ErrorKind::kProtocol, "a division's " + what); }

const Json& field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) bad_division(std::string(name) + " is missing");
  return *found;
}

int small(const Json& object, const char* name) {
  const std::int64_t value = integer_from(field(object, name), std::string("a division's ") + name);
  if (value < -1 || value > kMaxInteger)
    bad_division(std::string(name) + " is " + std::to_string(value) + ": give -1 to 2^30");
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
  if (plan::is_deeper(text, kMaxDivisionDepth)) bad_division("JSON is nested deeper than a division can be");
  const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) bad_division("JSON is not an object");
  const Json& shares = field(parsed, "shares");
  if (!shares.is_array()) bad_division("shares are not a list");
  Plan plan{small(parsed, "input"), small(parsed, "dim"), {}, small(parsed, "chunks")};
  for (const Json& share : shares) plan.shares.push_back(share_from(share));
  return plan;
}

}  // namespace atl::infer
