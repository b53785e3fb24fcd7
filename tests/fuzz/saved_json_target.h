// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "atoll/infer/profile.h"
#include "atoll/json/fields.h"
#include "atoll/plan/layers/json.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/published_profile.h"
#include "tests/fuzz/refusals.h"

// Saved texts, for libFuzzer and for a test with mutated ones: each is rejected by name, or read.
namespace atl::fuzz {

/// What `atoll profile` writes: what is read is written unchanged. Returns whether the text was that.
inline bool saved_json(const std::string& text) {
  return is_read(ErrorKind::kInvalidArgument, [&] {
    const infer::Profile profile = infer::profile_from_json(text);
    if (infer::profile_from_json(infer::to_json(profile)) != profile) std::abort();
  });
}

/// What `atoll plan` reads: a published profile, a list of operators, a link, a request about layers. Returns whether
/// the text was one of these.
inline bool plan_files(const std::string& text) {
  constexpr ErrorKind kRefusal = ErrorKind::kInvalidArgument;
  const bool is_profile = is_read(kRefusal, [&] { plan::check(plan::published_profile(text).graph); });
  const bool is_list = is_read(kRefusal, [&] {
    const json::Json value = json::parse(text, "a list of operators");
    json::Fields fields(value, "the list of operators");
    plan::check(plan::read_operators(fields));
    fields.done();
  });
  const bool is_link = is_read(kRefusal, [&] { plan::check(plan::read_link(json::parse(text, "a link"))); });
  const bool is_layers = is_read(kRefusal, [&] { plan::layers_from_json(text); });
  return is_profile || is_list || is_link || is_layers;
}

}  // namespace atl::fuzz
