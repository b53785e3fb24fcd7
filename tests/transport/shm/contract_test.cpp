// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_contract.h"

namespace atl::test {

INSTANTIATE_TEST_SUITE_P(Shm, LinkContract, link_contract_params(transport::TransportChoice::kShm), link_contract_name);

}  // namespace atl::test
