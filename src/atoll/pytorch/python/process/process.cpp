// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/process.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "atoll/core/bytes.h"
#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/python/process/arena.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/auth.h"

namespace atl::pytorch {
namespace {

// The sizes of what the first process of a job writes to the store: the job's name, and a key for ranks without a key
// file.
constexpr std::size_t kJobBytes = 16;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxLabelLength = 64;

// All ranks agree on a key, whether it is used or not. If some ranks have a key file and others do not, that is
// detected when the group meets, where all ranks can be told.
void agree_on_job(const c10::intrusive_ptr<c10d::Store>& root, transport::EndpointOptions& options, Deadline deadline) {
  std::vector<std::byte> proposal(kJobBytes + kKeyBytes);
  transport::fill_random(proposal);
  const std::string key = "atoll/job/" + environment("TORCHELASTIC_RUN_ID") + "/" + std::to_string(options.attempt);
  const auto agreed = agree(root, key, proposal, deadline);
  if (agreed.size() != kJobBytes + kKeyBytes) {
    throw Error(ErrorKind::kStore,
                "the job's store holds " + std::to_string(agreed.size()) + " bytes where Atoll keeps the job's name");
  }
  options.job = hex(std::span(agreed).first(kJobBytes));
  // With TLS a key from the store is not accepted: without a key file the endpoint refuses to start.
  if (options.key.empty() && !options.tls) options.key.assign(agreed.begin() + kJobBytes, agreed.end());
}

std::shared_ptr<Process> open_process(const c10::intrusive_ptr<c10d::Store>& store, int global_rank,
                                      Deadline deadline) {
  transport::EndpointOptions options = collectives::Context::options_from_environment();
  logging::install_spdlog_sink();
  const auto root = root_of(store);
  options.name = "rank " + std::to_string(global_rank);
  options.attempt = attempt();
  if (const std::string host = host_of(root); !host.empty()) options.route_hint = host;
  options.arena = process_arena();
  agree_on_job(root, options, deadline);
  auto process = std::make_shared<Process>();
  process->context = std::make_shared<collectives::Context>(std::move(options));
  return process;
}

}  // namespace

std::shared_ptr<Process> join_process(const c10::intrusive_ptr<c10d::Store>& store, int global_rank,
                                      Deadline deadline) {
  static std::mutex mutex;
  static std::weak_ptr<Process> live;
  static std::uint32_t made_in = 0;
  const std::lock_guard lock(mutex);
  if (made_in == fork_depth()) {  // a forked child cannot use what belongs to its parent's threads
    if (auto process = live.lock()) return process;
  }
  auto process = open_process(store, global_rank, deadline);
  live = process;
  made_in = fork_depth();
  return process;
}

std::uint32_t attempt() {
  const auto any = [](std::uint32_t) { return true; };
  return number_setting("TORCHELASTIC_RESTART_COUNT", std::uint32_t{0}, any, "a whole number");
}

std::string island_label(collectives::Context& context, const Place& place) {
  const std::string label = environment("ATOLL_ISLAND");
  if (label.empty()) return place.stack + (place.one_host ? "@" + context.endpoint().address().host : "");
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("._:@/-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (label.size() > kMaxLabelLength || !std::all_of(label.begin(), label.end(), is_plain)) {
    reject_setting("ATOLL_ISLAND", label,
                   "at most " + std::to_string(kMaxLabelLength) + " letters, digits and characters of \"._:@/-\"");
  }
  return label;
}

collectives::GroupOptions group_options() {
  constexpr std::size_t kForDumps = 256;
  constexpr std::size_t kForTraces = 65536;
  constexpr std::size_t kMax = std::size_t{1} << 20;
  const auto is_rate = [](double rate) { return rate > 0 && rate < 1e12; };
  const auto is_pause = [](double seconds) { return seconds == 0 || (seconds >= 0.2 && seconds <= 86400); };
  collectives::GroupOptions options;
  options.uplink =
      number_setting("ATOLL_UPLINK", 0.0, is_rate, "a positive number: this rank's relative rate to other islands");
  options.flat_reduce = choice_setting("ATOLL_REDUCE", {"flat"}, "flat, or nothing") != 0;
  options.check_data = choice_setting("ATOLL_CHECK_DATA", {"1"}, "1, or nothing") != 0;
  options.check_values = static_cast<collectives::ValueCheck>(
      choice_setting("ATOLL_CHECK_VALUES", {"warn", "raise"}, "warn, raise, or nothing"));
  options.slow_after =
      milliseconds_of(number_setting("ATOLL_SLOW_AFTER", 20.0, is_pause, "0, or seconds from 0.2 to 86400"));
  options.fold_threads = number_setting("ATOLL_FOLD_THREADS", std::size_t{0}, std::size_t{1}, std::size_t{64},
                                        "a whole number from 1 to 64");
  options.trace_folder = environment("ATOLL_TRACE_DIR");
  options.events = number_setting("ATOLL_TRACE_EVENTS", options.trace_folder.empty() ? kForDumps : kForTraces,
                                  kForDumps, kMax, "a whole number from 256 to 1048576");
  std::error_code ignored;
  if (!options.trace_folder.empty() && !std::filesystem::is_directory(options.trace_folder, ignored))
    reject_setting("ATOLL_TRACE_DIR", options.trace_folder, "an existing folder");
  return options;
}

std::uint64_t staging_bytes() {
  const auto mebibytes = number_setting("ATOLL_STAGING", std::uint64_t{24}, std::uint64_t{1}, std::uint64_t{65536},
                                        "a whole number from 1 to 65536: mebibytes of pinned memory for each group");
  return mebibytes << 20;
}

}  // namespace atl::pytorch
