// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/text.h"

#include <cmath>
#include <cstdio>

namespace atl::plan {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string percent(double share) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f %%", share * 100);
  return text;
}

void require_amount(const std::string& name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse(name + " is " + number(value) + ": give a finite number of at least 0");
}

}  // namespace atl::plan
