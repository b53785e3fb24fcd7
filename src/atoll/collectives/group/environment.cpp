// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/collectives/group/context_impl.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::collectives {
namespace {

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

[[noreturn]] void reject(const char* variable, const std::string& value, const std::string& wanted) {
  throw Error(ErrorKind::kInvalidArgument, std::string(variable) + "=\"" + value + "\": expected " + wanted);
}

template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void read_ports(transport::EndpointOptions& options) {
  const std::string value = text_of("ATOLL_PORTS");
  if (value.empty()) return;
  const auto dash = value.find('-');
  const auto first = parse<std::uint16_t>(std::string_view(value).substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse<std::uint16_t>(std::string_view(value).substr(dash + 1));
  if (!first || !last || *first == 0 || *first > *last)
    reject("ATOLL_PORTS", value, "a port range such as 29600-29700");
  options.port_first = *first;
  options.port_last = *last;
}

void read_transport(transport::EndpointOptions& options) {
  const std::string value = text_of("ATOLL_TRANSPORT");
  if (value.empty() || value == "auto") return;
  if (value == "shm") {
    options.transport = transport::TransportChoice::kShm;
  } else if (value == "tcp") {
    options.transport = transport::TransportChoice::kTcp;
  } else if (value == "ucx") {
    options.transport = transport::TransportChoice::kUcx;
  } else {
    reject("ATOLL_TRANSPORT", value, "auto, shm, tcp or ucx");
  }
}

void read_heartbeat(transport::EndpointOptions& options) {
  const std::string value = text_of("ATOLL_HEARTBEAT");
  if (value.empty()) return;
  const auto seconds = parse<double>(value);
  if (!seconds || !(*seconds >= 0.1) || *seconds > 86400)
    reject("ATOLL_HEARTBEAT", value, "seconds between 0.1 and 86400");
  options.heartbeat = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

void read_key(transport::EndpointOptions& options) {
  const std::string path = text_of("ATOLL_KEY_FILE");
  if (path.empty()) return;
  try {
    options.key = transport::read_key_file(path);
  } catch (const Error& error) {
    reject("ATOLL_KEY_FILE", path,
           std::string("a file that only its owner may read, equal on all ranks; ") + error.what());
  }
}

// These are read only where they are used, which is too late to reject an invalid value.
void check_others() {
  struct Choice {
    const char* variable;
    std::vector<std::string_view> values;
    const char* wanted;
  };
  static const Choice kChoices[] = {
      {"ATOLL_SIMD", {"plain", "avx2", "avx512"}, "plain, avx2 or avx512"},
      {"ATOLL_CHECK", {"1"}, "1, or nothing"},
      {"ATOLL_TLS", {"1"}, "1, or nothing"},
      {"ATOLL_LOG_LEVEL", {"debug", "info", "warning", "error", "off"}, "debug, info, warning, error or off"}};
  for (const auto& [variable, values, wanted] : kChoices) {
    const std::string value = text_of(variable);
    if (!value.empty() && std::find(values.begin(), values.end(), value) == values.end())
      reject(variable, value, wanted);
  }
  const std::string folder = text_of("ATOLL_DUMP_DIR");
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    reject("ATOLL_DUMP_DIR", folder, "an existing folder");
}

}  // namespace

bool key_comes_from_file() { return !text_of("ATOLL_KEY_FILE").empty(); }

transport::EndpointOptions Context::options_from_environment() {
  transport::EndpointOptions options;
  options.host = text_of("ATOLL_HOST");
  options.interface = text_of("ATOLL_IFACE");
  options.rails = text_of("ATOLL_RAILS");
  options.advertised_address = text_of("ATOLL_ADDRESS");
  options.route_hint = text_of("MASTER_ADDR");
  read_ports(options);
  read_transport(options);
  read_heartbeat(options);
  check_others();
  read_key(options);
  options.tls = !text_of("ATOLL_TLS").empty();
  return options;
}

}  // namespace atl::collectives
