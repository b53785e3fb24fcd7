// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/core/error.h"
#include "atoll/plan/cost.h"
#include "atoll/plan/json_fields.h"

namespace atl::plan {

/// A cost as a JSON object: "shape" with the parameters of that shape's maker; "factor" when it is scaled; "overlap" with
/// "forward_share" and "buckets" ([ready, seconds] each) when it has collectives.
struct CostFields {
  static Json write(const Cost& cost);
  static Cost read(const Json& value, const std::string& what);
};

/// [[first, second], ...] under `key`, as what `make` gives for each pair.
template <typename Make>
auto read_pairs(Fields& fields, const std::string& key, const std::string& what, Make make) {
  std::vector<decltype(make(0.0, 0.0))> result;
  for (const Json& pair : fields.list(key)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      throw Error(ErrorKind::kInvalidArgument,
                  what + " has in \"" + key + "\": " + pair.dump().substr(0, 80) + ", which is not two numbers");
    }
    result.push_back(make(pair[0].template get<double>(), pair[1].template get<double>()));
  }
  return result;
}

}  // namespace atl::plan
