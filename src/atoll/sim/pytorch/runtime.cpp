// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/environment.h"
#include "atoll/core/fd.h"

namespace atl::sim {
namespace {

constexpr c10::DeviceIndex kMaxDevices = 64;
constexpr c10::DeviceIndex kUsualDevices = 8;
constexpr double kUsualMemory = 64.0 * (std::size_t{1} << 30);  // address space; pages are taken at first use
constexpr c10::StreamId kPoolStreams = 32;                      // 1 to 32, as many as CUDA has
constexpr int kAllCaptures = 0;                                 // cudaStreamCaptureModeGlobal

struct Runtime {
  std::mutex mutex;
  std::array<std::atomic<Device*>, kMaxDevices> devices{};
  DeviceKind kind;
  std::uint32_t made_in = fork_depth();
};

// Never destroyed: tensors may outlive static objects.
Runtime& runtime() {
  static auto* const all = new Runtime;
  return *all;
}

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> this_stream{};
thread_local bool this_captures = false;
thread_local int this_capture_mode = kAllCaptures;
std::atomic<int> captures = 0;  // of all threads, under way
std::atomic<bool> captures_are_ended = false;
std::atomic<const std::string*> failing_threads = nullptr;

void require_index(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "sim:", static_cast<int>(index), " is not there: this process has ",
              static_cast<int>(device_count()), " simulated devices (ATOLL_SIM_DEVICES)");
}

}  // namespace

bool is_capturing() noexcept { return this_captures; }

void pretend_capturing(bool on) {
  if (on == std::exchange(this_captures, on)) return;
  captures += on ? 1 : -1;
  const bool are_ended = captures_are_ended.exchange(false);
  TORCH_CHECK(on || !are_ended, "sim: the capture was ended by another thread, which queried an event");
}

void note_query() noexcept {
  if (captures > 0 && !this_captures && this_capture_mode == kAllCaptures) captures_are_ended = true;
}

int exchange_capture_mode(int* mode) noexcept {
  std::swap(*mode, this_capture_mode);
  return 0;
}

void pretend_failed(const std::optional<std::string>& threads) {
  failing_threads = threads ? new const std::string(*threads) : nullptr;  // leaked: a thread may still be reading it
}

void require_working() {
  const std::string* const threads = failing_threads.load();
  if (threads == nullptr) return;
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  TORCH_CHECK(std::string_view(name.data()).substr(0, threads->size()) != *threads, "sim: the device has failed");
}

double number_from(const char* name, double fallback) {
  const std::string text = environment(name);
  if (text.empty()) return fallback;
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (unit == "K") value *= 1e3;
  if (unit == "M") value *= 1e6;
  if (unit == "G") value *= 1e9;
  const bool known = unit.empty() || unit == "K" || unit == "M" || unit == "G";
  TORCH_CHECK_VALUE(end != text.c_str() && known && value >= 0, name, " is \"", text,
                    "\"; it must be a number that is not negative, like 2.5 or 16G");
  return value;
}

Event LibraryOrder::issue(Stream& stream, bool is_message, const std::function<Event()>& enqueue) {
  const std::lock_guard lock(mutex_);
  stream.wait_for(collective_);
  if (!is_message) {
    for (const Event& message : messages_) stream.wait_for(message);
    messages_.clear();
    return collective_ = enqueue();
  }
  std::erase_if(messages_, [](const Event& message) { return message.is_reached(); });
  return messages_.emplace_back(enqueue());
}

void LibraryOrder::note(const Event& end) {
  const std::lock_guard lock(mutex_);
  while (!all_.empty() && all_.front().is_reached()) all_.pop_front();
  all_.push_back(end);
}

void LibraryOrder::wait() {
  std::deque<Event> all;
  {
    const std::lock_guard lock(mutex_);
    all = all_;
  }
  for (const Event& each : all) each.wait();
}

Device::Device(std::size_t memory_bytes, DeviceKind kind, double speed, double copy_bytes_per_s, std::uint64_t seed)
    : model_(std::move(kind), speed, copy_bytes_per_s, seed), memory_(memory_bytes) {
  for (c10::StreamId id = 0; id <= kPoolStreams; ++id) streams_.push_back(std::make_unique<Stream>(punctuality_));
}

Stream& Device::stream(c10::StreamId id) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(id >= 0 && static_cast<std::size_t>(id) < streams_.size(), "sim: there is no stream ", id);
  return *streams_[static_cast<std::size_t>(id)];
}

c10::StreamId Device::new_stream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>(punctuality_));
  return static_cast<c10::StreamId>(streams_.size()) - 1;
}

c10::StreamId Device::pool_stream() {
  const std::lock_guard lock(mutex_);
  return next_of_pool_ = next_of_pool_ % kPoolStreams + 1;
}

void Device::synchronize() {
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) all.push_back(stream.get());
  }
  for (Stream* const stream : all) stream->synchronize();
}

void set_kind(DeviceKind kind) {
  const std::lock_guard lock(runtime().mutex);
  runtime().kind = std::move(kind);
}

c10::DeviceIndex device_count() {
  static const auto count = [] {
    const std::string value = environment("ATOLL_SIM_DEVICES");
    if (value.empty()) return kUsualDevices;
    const auto wanted = to_number<int>(value);
    TORCH_CHECK_VALUE(wanted && *wanted >= 1 && *wanted <= kMaxDevices, "ATOLL_SIM_DEVICES is \"", value,
                      "\"; it must be a whole number from 1 to ", static_cast<int>(kMaxDevices));
    return static_cast<c10::DeviceIndex>(*wanted);
  }();
  return count;
}

Device& device(c10::DeviceIndex index) {
  if (index < 0) index = this_device;
  require_index(index);
  Runtime& all = runtime();
  TORCH_CHECK(all.made_in == fork_depth(),
              "a simulated device cannot be used in a forked process: start it with spawn or forkserver");
  std::atomic<Device*>& slot = all.devices[static_cast<std::size_t>(index)];
  if (Device* const known = slot.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(all.mutex);
  if (slot.load() == nullptr) {
    const auto memory = static_cast<std::size_t>(number_from("ATOLL_SIM_MEMORY", kUsualMemory));
    const auto seed = static_cast<std::uint64_t>(number_from("ATOLL_SIM_SEED", 0) + 1000 * number_from("RANK", 0));
    slot = new Device(memory, all.kind, number_from("ATOLL_SIM_SPEED", 0), number_from("ATOLL_SIM_BANDWIDTH", 0),
                      seed * kMaxDevices + static_cast<std::uint64_t>(index));
  }
  return *slot.load();
}

void empty_caches() noexcept {
  for (const auto& slot : runtime().devices) {
    if (Device* const made = slot.load()) made->memory().empty_cache();
  }
}

Device* device_of(const void* address) noexcept {
  for (const auto& slot : runtime().devices) {
    Device* const made = slot.load();
    if (made != nullptr && made->memory().contains(address)) return made;
  }
  return nullptr;
}

bool is_initialized() noexcept {
  for (const auto& slot : runtime().devices) {
    if (slot.load() != nullptr) return true;
  }
  return false;
}

std::vector<int> used_devices() {
  std::vector<int> used;
  for (std::size_t index = 0; index < runtime().devices.size(); ++index) {
    if (runtime().devices[index].load() != nullptr) used.push_back(static_cast<int>(index));
  }
  return used;
}

c10::DeviceIndex current_device() noexcept { return this_device; }

void set_current_device(c10::DeviceIndex index) {
  require_index(index);
  device(index);
  this_device = index;
}

void reset_current_device(c10::DeviceIndex index) noexcept { this_device = index; }

c10::Stream current_stream(c10::DeviceIndex index) noexcept {
  if (index < 0) index = this_device;
  return as_stream(index, this_stream[static_cast<std::size_t>(index)]);
}

c10::Stream set_current_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device_index());
  this_stream[static_cast<std::size_t>(stream.device_index())] = stream.id();
  return before;
}

c10::Stream as_stream(c10::DeviceIndex index, c10::StreamId id) noexcept {
  if (index < 0) index = this_device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), id);
}

Stream& stream_of(const c10::Stream& stream) { return device(stream.device_index()).stream(stream.id()); }

}  // namespace atl::sim
