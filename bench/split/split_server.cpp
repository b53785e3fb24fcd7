// SPDX-License-Identifier: Apache-2.0
// The server of bench/split_bytes.py, with workers that model a device, and the links to it. Reads settings, a JSON
// object on one line of standard input:
//   {"key_file", "cache" (a folder), "turns" (sessions that compute at once),
//    "links": [{"rate" (bytes per second), "latency", "half_duplex", "trace"}]}
// Answers with the addresses that robots connect to, by link: {"links": [...]}. {"begin": SECONDS}, of the machine's
// monotonic clock, sets when the traces begin; until then, and without a trace, a link has its rate. At the end of the
// input it reports what it has done, and exits.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/infer/serve/server.h"
#include "bench/split/lines.h"
#include "tests/support/relay.h"

namespace {

using atl::json::Fields;
using atl::json::Json;
using atl::test::Relay;

struct Link {
  std::unique_ptr<Relay> relay;
  std::optional<atl::plan::Trace> trace;
};

Link link_of(const Json& value, const std::string& server) {
  Fields fields(value, "a link");
  Relay::Path path;
  path.bytes_per_second = fields.number("rate");
  path.delay = std::chrono::microseconds(static_cast<std::int64_t>(fields.number("latency", 0) * 1e6));
  path.half_duplex = fields.boolean("half_duplex", false);
  Link link;
  if (fields.has("trace")) link.trace = atl::bench::trace_of(fields.at("trace"));
  fields.done();
  link.relay = std::make_unique<Relay>(server, path);
  return link;
}

void serve() {
  const Json settings = atl::bench::next_line("the settings");
  Fields fields(settings, "the settings");
  atl::infer::ServerOptions options;
  options.credentials = atl::transport::Credentials::of_key_file(fields.text("key_file"));
  options.cache_folder = fields.text("cache");
  options.turns = static_cast<std::size_t>(fields.integer("turns", 1));
  options.worker_program = ATOLL_SPLIT_WORKER;
  options.worker_memory_bytes = 0;
  options.device = "1";  // the times are as the model says
  const atl::infer::Server server(options);
  std::vector<Link> links;
  Json addresses = Json::array();
  for (const Json& each : fields.list("links")) {
    links.push_back(link_of(each, server.address()));
    addresses.push_back(links.back().relay->address());
  }
  fields.done();
  atl::bench::say({{"links", addresses}});
  for (;;) {
    const Json command = atl::bench::next_line("a command");
    if (command.empty()) break;
    Fields of(command, "a command");
    const auto begin = atl::bench::moment_of(of.number("begin"));
    of.done();
    for (const Link& link : links) {
      if (link.trace) link.relay->replay(*link.trace, begin);
    }
  }
  const atl::infer::ServerCounts counts = server.counts();
  atl::bench::say({{"inferences", counts.inferences},
                   {"failed", counts.failed},
                   {"cancelled", counts.cancelled},
                   {"workers_lost", counts.workers_lost},
                   {"compute_seconds", counts.compute_seconds},
                   {"waited_seconds", counts.waited_seconds}});
}

}  // namespace

int main() {
  try {
    serve();
  } catch (const std::exception& error) {
    atl::bench::say({{"error", error.what()}});
    return 1;
  }
  return 0;
}
