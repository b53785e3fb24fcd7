// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_contract.h"
#include "tests/transport/ucx/support.h"

namespace atl::test {

INSTANTIATE_TEST_SUITE_P(UcxMemory, LinkContract, link_contract_params(transport::TransportChoice::kUcx, kUcxMemory),
                         link_contract_name);
INSTANTIATE_TEST_SUITE_P(UcxNetwork, LinkContract, link_contract_params(transport::TransportChoice::kUcx, kUcxNetwork),
                         link_contract_name);

}  // namespace atl::test
