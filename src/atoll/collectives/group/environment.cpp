// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/environment.h"

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "atoll/collectives/group/context_impl.h"
#include "atoll/transport/stream/key_file.h"

namespace atl::collectives {
namespace {

void read_ports(transport::EndpointOptions& options) {
  const std::string value = environment("ATOLL_PORTS");
  if (value.empty()) return;
  const auto dash = value.find('-');
  const auto first = number_in<std::uint16_t>(std::string_view(value).substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : number_in<std::uint16_t>(std::string_view(value).substr(dash + 1));
  if (!first || !last || *first == 0 || *first > *last)
    reject_setting("ATOLL_PORTS", value, "a port range such as 29600-29700");
  options.port_first = *first;
  options.port_last = *last;
}

void read_transport(transport::EndpointOptions& options) {
  using enum transport::TransportChoice;
  constexpr std::array kChoices{kAuto, kAuto, kShm, kTcp, kUcx};
  options.transport =
      kChoices.at(choice_setting("ATOLL_TRANSPORT", {"auto", "shm", "tcp", "ucx"}, "auto, shm, tcp or ucx"));
}

void read_heartbeat(transport::EndpointOptions& options) {
  const double seconds = number_setting("ATOLL_HEARTBEAT", 0.0, 0.1, 86400.0, "seconds between 0.1 and 86400");
  if (seconds > 0) options.heartbeat = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void read_key(transport::EndpointOptions& options) {
  const std::string path = environment("ATOLL_KEY_FILE");
  if (path.empty()) return;
  try {
    options.key = transport::read_key_file(path);
  } catch (const Error& error) {
    reject_setting("ATOLL_KEY_FILE", path,
                   std::string("a file that only its owner may read, equal on all ranks; ") + error.what());
  }
}

// These are read only where they are used, which is too late to reject an invalid value.
void check_others() {
  choice_setting("ATOLL_SIMD", {"plain", "avx2", "avx512"}, "plain, avx2 or avx512");
  choice_setting("ATOLL_CHECK", {"1"}, "1, or nothing");
  choice_setting("ATOLL_TLS", {"1"}, "1, or nothing");
  choice_setting("ATOLL_LOG_LEVEL", {"debug", "info", "warning", "error", "off"},
                 "debug, info, warning, error or off");
  const std::string folder = environment("ATOLL_DUMP_DIR");
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    reject_setting("ATOLL_DUMP_DIR", folder, "an existing folder");
}

}  // namespace

bool key_comes_from_file() { return !environment("ATOLL_KEY_FILE").empty(); }

transport::EndpointOptions Context::options_from_environment() {
  transport::EndpointOptions options;
  options.host = environment("ATOLL_HOST");
  options.interface = environment("ATOLL_IFACE");
  options.rails = environment("ATOLL_RAILS");
  options.advertised_address = environment("ATOLL_ADDRESS");
  options.route_hint = environment("MASTER_ADDR");
  read_ports(options);
  read_transport(options);
  read_heartbeat(options);
  check_others();
  read_key(options);
  options.tls = !environment("ATOLL_TLS").empty();
  return options;
}

}  // namespace atl::collectives
