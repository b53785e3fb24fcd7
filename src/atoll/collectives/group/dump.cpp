// SPDX-License-Identifier: Apache-2.0
// Writes a rank's last operations to files.
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "atoll/collectives/group/impl.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/json/parse.h"

namespace atl::collectives {
namespace {

using json::Json;

constexpr int kDumpFormat = 2;
constexpr std::size_t kReadable = 1024;  // with at most this many operations the file is indented for human readers

// Processes with the same boot id share one clock.
Json process_json(Context& context) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const auto& address = context.endpoint().address();
  return {{"pid", getpid()}, {"name", address.name}, {"host", address.host}, {"clock", boot}};
}

// The operation's number is written as its "sequence".
Json event_json(const EventRing::Event& event) {
  static constexpr const char* kStateNames[] = {"issued", "started", "completed", "failed"};
  return {{"operation", to_string(event.signature.operation)},
          {"sequence", number_of(event.signature.sequence)},
          {"part", part_of(event.signature.sequence)},
          {"reduce_op", to_string(event.signature.reduce_op)},
          {"dtype", to_string(event.signature.dtype)},
          {"bytes", event.bytes},
          {"root", event.signature.root},
          {"state", kStateNames[static_cast<std::size_t>(event.state)]},
          {"issued_us", event.issued_us},
          {"started_us", event.started_us},
          {"finished_us", event.finished_us}};
}

}  // namespace

void Group::Impl::on_dump_requested() { write_dump(dump_folder(), "SIGUSR1"); }

std::string Group::Impl::dump_json() const {
  const auto& endpoint = context->endpoint();
  Json json = {{"format", kDumpFormat},
               {"job", endpoint.options().job},
               {"attempt", attempt},
               {"group", options.name},
               {"id", std::to_string(ports.group_id())},
               {"rank", options.rank},
               {"size", options.size},
               {"process", process_json(*context)},
               {"written_us", EventRing::now_us()},
               {"members", Json::array()},
               {"islands", Json::array()},
               {"clock", Json::array()}};
  for (int rank = 0; rank < options.size; ++rank) json["members"].push_back(ports.name(rank));
  for (const ClockSample& sample : clock_list())
    json["clock"].push_back({sample.at_us, sample.offset_us, sample.error_us});
  for (std::size_t i = 0; i < topology.islands.size(); ++i) {
    json["islands"].push_back({{"label", topology.labels[i]}, {"ranks", topology.islands[i]}});
  }
  json["links"] = Json::array();
  for (int peer = 0; peer < options.size; ++peer) {
    transport::Link* link = peer == options.rank ? nullptr : const_cast<PeerPorts&>(ports).link_if_open(peer);
    if (link) json["links"].push_back({{"rank", peer}, {"link", link->describe()}});
  }
  if (const auto error = failure.get()) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& first) {
      json["error"] = {{"kind", atl::to_string(first.kind())}, {"message", first.what()}};
    }
  }
  json["operations"] = Json::array();
  for (const EventRing::Event& event : events.list()) json["operations"].push_back(event_json(event));
  const int indent = options.events <= kReadable ? 1 : -1;
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::vector<ClockSample> Group::Impl::clock_list() const {
  const std::lock_guard lock(clock_mutex);
  return clock_samples.list();
}

std::string Group::Impl::dump_folder() const {
  const char* configured = std::getenv("ATOLL_DUMP_DIR");
  if (configured && *configured) return configured;
  return options.trace_folder.empty() ? std::filesystem::temp_directory_path().string() : options.trace_folder;
}

// The file is renamed into place, so that a reader of the folder sees either the previous file or this one, whole.
void Group::Impl::write_dump(const std::string& folder, const char* why) const noexcept {
  try {
    std::string group = options.name;
    for (char& c : group) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
    }
    const auto path = std::filesystem::path(folder) / ("atoll-" + std::to_string(getpid()) + "-rank" +
                                                       std::to_string(options.rank) + "-" + group + ".json");
    const std::string unfinished = path.string() + ".part" + std::to_string(gettid());
    write_private_file(unfinished, dump_json() + '\n');
    std::filesystem::rename(unfinished, path);
    log(LogLevel::kInfo,
        "rank " + std::to_string(options.rank) + " wrote its last operations (" + why + ") to " + path.string());
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("could not write the dump: ") + error.what());
  }
}

void Group::Impl::write_trace() noexcept {
  if (options.trace_folder.empty() || trace_is_written.exchange(true)) return;
  write_dump(options.trace_folder, "end");
}

}  // namespace atl::collectives
