// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/json/parse.h"
#include "atoll/plan/cost.h"

namespace atl::plan {

/// A cost as a JSON object: "shape" with the parameters of that shape's factory function; "factor" if it is scaled;
/// "overlap" with "forward_share" and "buckets" ([ready, seconds] each) if it has collectives.
struct CostFields {
  static json::Json write(const Cost& cost);
  static Cost read(const json::Json& value, const std::string& what);
};

}  // namespace atl::plan
