// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/process.h"

#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/python/process/arena.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/pytorch/python/store/store.h"

namespace atl::pytorch {
namespace {

// The sizes of what the first process of a job writes to the store: the job's name, and a key for ranks without a key
// file.
constexpr std::size_t kJobBytes = 16;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxLabelLength = 64;

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) {
    throw Error(ErrorKind::kUnavailable, with_errno("the system returned no random bytes for the job's key", errno));
  }
  return bytes;
}

std::string value_of_variable(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

[[noreturn]] void reject(const char* variable, const std::string& value, const std::string& wanted) {
  throw Error(ErrorKind::kInvalidArgument, std::string(variable) + "=\"" + value + "\": expected " + wanted);
}

// All ranks agree on a key, whether it is used or not. If some ranks have a key file and others do not, that is
// detected when the group meets, where all ranks can be told.
void agree_on_job(const c10::intrusive_ptr<c10d::Store>& root, transport::EndpointOptions& options, Deadline deadline) {
  const std::string run = value_of_variable("TORCHELASTIC_RUN_ID");
  const auto agreed = agree(root, "atoll/job/" + run + "/" + std::to_string(options.attempt),
                            random_bytes(kJobBytes + kKeyBytes), deadline);
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
  const std::string value = value_of_variable("TORCHELASTIC_RESTART_COUNT");
  if (value.empty()) return 0;
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc{} || end != value.data() + value.size())
    reject("TORCHELASTIC_RESTART_COUNT", value, "a whole number");
  return count;
}

std::string island_label(collectives::Context& context, const Place& place) {
  const std::string label = value_of_variable("ATOLL_ISLAND");
  if (label.empty()) return place.stack + (place.one_host ? "@" + context.endpoint().address().host : "");
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("._:@/-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (label.size() > kMaxLabelLength || !std::all_of(label.begin(), label.end(), is_plain)) {
    reject("ATOLL_ISLAND", label,
           "at most " + std::to_string(kMaxLabelLength) + " letters, digits and characters of \"._:@/-\"");
  }
  return label;
}

double uplink() {
  const std::string value = value_of_variable("ATOLL_UPLINK");
  if (value.empty()) return 0;
  double rate = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rate);
  if (error != std::errc{} || end != value.data() + value.size() || !(rate > 0 && rate < 1e12)) {
    reject("ATOLL_UPLINK", value, "a positive number: this rank's relative rate to other islands");
  }
  return rate;
}

bool check_data() {
  const std::string value = value_of_variable("ATOLL_CHECK_DATA");
  if (!value.empty() && value != "1") reject("ATOLL_CHECK_DATA", value, "1, or nothing");
  return value == "1";
}

collectives::ValueCheck check_values() {
  const std::string value = value_of_variable("ATOLL_CHECK_VALUES");
  if (value.empty()) return collectives::ValueCheck::kNone;
  if (value == "warn") return collectives::ValueCheck::kWarn;
  if (value == "raise") return collectives::ValueCheck::kRaise;
  reject("ATOLL_CHECK_VALUES", value, "warn, raise, or nothing");
}

std::chrono::milliseconds slow_after() {
  const std::string value = value_of_variable("ATOLL_SLOW_AFTER");
  if (value.empty()) return std::chrono::seconds(20);
  double seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const bool is_number = error == std::errc{} && end == value.data() + value.size();
  if (!is_number || !(seconds == 0 || (seconds >= 0.2 && seconds <= 86400)))
    reject("ATOLL_SLOW_AFTER", value, "0, or seconds from 0.2 to 86400");
  return milliseconds_of(seconds);
}

std::string trace_folder() {
  const std::string folder = value_of_variable("ATOLL_TRACE_DIR");
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    reject("ATOLL_TRACE_DIR", folder, "an existing folder");
  return folder;
}

std::size_t trace_events() {
  constexpr std::size_t kForDumps = 256;
  constexpr std::size_t kForTraces = 65536;
  const std::string value = value_of_variable("ATOLL_TRACE_EVENTS");
  if (value.empty()) return value_of_variable("ATOLL_TRACE_DIR").empty() ? kForDumps : kForTraces;
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc{} || end != value.data() + value.size() || count < kForDumps || count > (1U << 20))
    reject("ATOLL_TRACE_EVENTS", value, "a whole number from 256 to 1048576");
  return count;
}

std::uint64_t staging_bytes() {
  constexpr std::uint64_t kUsual = std::uint64_t{24} << 20;
  const std::string value = value_of_variable("ATOLL_STAGING");
  if (value.empty()) return kUsual;
  std::uint64_t mebibytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), mebibytes);
  if (error != std::errc{} || end != value.data() + value.size() || mebibytes < 1 || mebibytes > 65536) {
    reject("ATOLL_STAGING", value, "a whole number from 1 to 65536: mebibytes of pinned memory for each group");
  }
  return mebibytes << 20;
}

std::size_t fold_threads() {
  const std::string value = value_of_variable("ATOLL_FOLD_THREADS");
  if (value.empty()) return 0;
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc{} || end != value.data() + value.size() || count < 1 || count > 64)
    reject("ATOLL_FOLD_THREADS", value, "a whole number from 1 to 64");
  return count;
}

bool flat_reduce() {
  const std::string value = value_of_variable("ATOLL_REDUCE");
  if (!value.empty() && value != "flat") reject("ATOLL_REDUCE", value, "flat, or nothing");
  return value == "flat";
}

}  // namespace atl::pytorch
