// SPDX-License-Identifier: Apache-2.0
// Writes a rank's last operations to files, and compares its wall clock with that of the group's first rank, for
// traces.
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>

#include "atoll/collectives/group/impl.h"
#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/json/parse.h"

namespace atl::collectives {
namespace {

using json::Json;

constexpr int kDumpFormat = 2;
constexpr std::size_t kReadable = 1024;  // with at most this many operations the file is indented for human readers

constexpr int kSeries = 8;
constexpr std::chrono::milliseconds kNext{20};
constexpr std::chrono::milliseconds kPause{10000};
constexpr int kReference = 0;

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
  {
    const std::lock_guard lock(clock_mutex);
    for (const ClockSample& sample : clock_samples.list())
      json["clock"].push_back({sample.at_us, sample.offset_us, sample.error_us});
  }
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

std::string Group::Impl::dump_folder() const {
  if (const std::string configured = environment("ATOLL_DUMP_DIR"); !configured.empty()) return configured;
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

void Group::Impl::watch_clock() {
  if (options.trace_folder.empty() || options.rank == kReference || options.size < 2) return;
  ports.watch(kReference);
  context->endpoint().loop().post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->request_time_on_loop();
  });
}

void Group::Impl::request_time_on_loop() {
  clock_timer.reset();
  if (failure.is_set()) return;
  transport::Link* link = ports.link_if_open(kReference);
  const auto state = link ? link->state() : transport::LinkState::kFailed;
  if (state == transport::LinkState::kClosed || state == transport::LinkState::kFailed) return;
  if (state == transport::LinkState::kUp) {
    link->send_control(encode(ports.group_id(), ClockMessage{false, EventRing::now_us(), 0}));
    ++clock_requests;
  }
  auto delay = kNext;
  if (clock_requests == kSeries) {
    const std::lock_guard lock(clock_mutex);
    clock_samples.keep_best();
    clock_requests = 0;
    delay = kPause * (1 << std::min(clock_samples.halvings(), 10));
  }
  clock_timer = context->endpoint().loop().add_timer_on_loop(delay, /*repeat=*/false, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->request_time_on_loop();
  });
}

void Group::Impl::stop_clock_on_loop() {
  if (clock_timer) context->endpoint().loop().cancel_timer_on_loop(*clock_timer);
  clock_timer.reset();
}

void Group::Impl::on_clock_message(transport::Link& link, int from, std::span<const std::byte> body) {
  const std::int64_t now_us = EventRing::now_us();
  const auto heard = decode_clock(body);
  if (!heard) return;
  if (!heard->is_answer) {
    link.send_control(encode(ports.group_id(), ClockMessage{true, heard->asked_us, now_us}));
  } else if (from == kReference) {
    const std::lock_guard lock(clock_mutex);
    clock_samples.add(heard->asked_us, heard->answered_us, now_us);
  }
}

}  // namespace atl::collectives
