// SPDX-License-Identifier: Apache-2.0
// Reads a request about several robots as JSON from standard input, and prints the answer (plan.h).
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include "bench/fleet/plan.h"

int main() {
  try {
    const std::string request(std::istreambuf_iterator<char>(std::cin), {});
    std::cout << atl::plan::fleet::plan_fleet_json(request) << '\n';
  } catch (const std::exception& error) {
    std::cerr << "plan_fleet: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
