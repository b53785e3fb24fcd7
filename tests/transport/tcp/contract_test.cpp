// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_contract.h"

namespace atl::test {

using transport::TransportChoice;

INSTANTIATE_TEST_SUITE_P(Tcp, LinkContract, link_contract_params(TransportChoice::kTcp), link_contract_name);
INSTANTIATE_TEST_SUITE_P(TcpTwoRails, LinkContract,
                         link_contract_params(TransportChoice::kTcp, "", "127.0.0.1,127.0.0.2"), link_contract_name);
INSTANTIATE_TEST_SUITE_P(TcpFourRails, LinkContract,
                         link_contract_params(TransportChoice::kTcp, "", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"),
                         link_contract_name);
INSTANTIATE_TEST_SUITE_P(Tls, LinkContract, link_contract_params(TransportChoice::kTcp, "", "", true),
                         link_contract_name);
INSTANTIATE_TEST_SUITE_P(TlsTwoRails, LinkContract,
                         link_contract_params(TransportChoice::kTcp, "", "127.0.0.1,127.0.0.2", true),
                         link_contract_name);

}  // namespace atl::test
