// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/control.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "atoll/core/atomics.h"

namespace atl::sim {

namespace {

constexpr std::size_t kErrorText = 2000;
constexpr std::uint32_t kClaimed = 1;
constexpr std::uint32_t kWritten = 2;
constexpr std::chrono::microseconds kSpin{
    100};  // most ranks arrive within this time, and waking up takes about as long
constexpr std::chrono::milliseconds kMaxControlSleep{100};
constexpr std::chrono::milliseconds kErrorWriting{100};

}  // namespace

struct Control::Header {
  alignas(64) std::atomic<std::uint32_t> bell;  // changes with every event
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint32_t> error_state;
  std::uint32_t error_kind;
  std::array<char, kErrorText> error_text;
};

namespace {

// A half in memory: the stage, the record, and `size` regions, followed by the next half.
struct HalfLayout {
  alignas(64) std::atomic<std::uint64_t> stage;
  Record record;
};

std::size_t half_bytes(std::size_t size) { return (sizeof(HalfLayout) + size * sizeof(Region) + 63) / 64 * 64; }
std::size_t halves(std::size_t size) { return kSlots * size + 2 * size * size; }

}  // namespace

// The header, a flag for each rank that has left, and the halves. All of it is initially zero.
Control::Control(int size) : size_(static_cast<std::size_t>(size)) {
  const int made = ::memfd_create("atoll-simccl", MFD_CLOEXEC);
  if (made < 0) throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot make shared memory", errno));
  memory_ = Fd(made);
  const std::size_t bytes = sizeof(Header) + size_ * 64 + halves(size_) * half_bytes(size_);
  if (::ftruncate(made, static_cast<off_t>(bytes)) != 0) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("simccl: cannot size shared memory to " + std::to_string(bytes) + " bytes", errno));
  }
  map();
}

Control::Control(int size, Fd memory) : size_(static_cast<std::size_t>(size)), memory_(std::move(memory)) { map(); }

void Control::map() {
  const std::size_t bytes = sizeof(Header) + size_ * 64 + halves(size_) * half_bytes(size_);
  struct stat status {};
  if (::fstat(memory_.get(), &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    throw Error(ErrorKind::kProtocol, "simccl: rank 0's shared memory has " + std::to_string(status.st_size) +
                                          " bytes instead of " + std::to_string(bytes) +
                                          "; do all ranks run the same version?");
  }
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (at == MAP_FAILED) throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot map shared memory", errno));
  ::madvise(at, bytes, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(at);
  header_ = reinterpret_cast<Header*>(base_);
}

Control::~Control() { ::munmap(base_, sizeof(Header) + size_ * 64 + halves(size_) * half_bytes(size_)); }

Half Control::half(std::size_t index) const noexcept {
  std::byte* const at = base_ + sizeof(Header) + size_ * 64 + index * half_bytes(size_);
  auto* const layout = reinterpret_cast<HalfLayout*>(at);
  return {layout->stage, layout->record, {reinterpret_cast<Region*>(at + sizeof(HalfLayout)), size_}};
}

Half Control::collective(std::uint64_t sequence, int rank) const noexcept {
  return half((sequence % kSlots) * size_ + static_cast<std::size_t>(rank));
}

Half Control::sender(int from, int to) const noexcept {
  return half(kSlots * size_ + 2 * (static_cast<std::size_t>(from) * size_ + static_cast<std::size_t>(to)));
}

Half Control::receiver(int from, int to) const noexcept {
  return half(kSlots * size_ + 2 * (static_cast<std::size_t>(from) * size_ + static_cast<std::size_t>(to)) + 1);
}

void Control::advance(const Half& half, std::uint64_t sequence, Stage stage) noexcept {
  half.stage.store(4 * sequence + static_cast<std::uint64_t>(stage), std::memory_order_release);
  ring();
}

bool Control::has_reached(const Half& half, std::uint64_t sequence, Stage stage) noexcept {
  return half.stage.load(std::memory_order_acquire) >= 4 * sequence + static_cast<std::uint64_t>(stage);
}

void Control::ring() noexcept {
  header_->bell.fetch_add(1, std::memory_order_seq_cst);
  if (header_->sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(header_->bell);
}

Control::Outcome Control::wait(const std::function<bool()>& ready, Deadline deadline) noexcept {
  const auto spin_until = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    if (ready()) return Outcome::kReady;
    if (has_failed()) return Outcome::kFailed;
    if (deadline.expired()) return Outcome::kTimeout;
    if (std::chrono::steady_clock::now() < spin_until) {
      ::sched_yield();
      continue;
    }
    // A bell that rings after it was read here ends the sleep at once.
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = header_->bell.load(std::memory_order_seq_cst);
    if (!ready() && !has_failed()) futex_wait(header_->bell, seen, deadline.remaining(kMaxControlSleep));
    header_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Control::fail(ErrorKind kind, const std::string& text) noexcept {
  std::uint32_t none = 0;
  if (!header_->error_state.compare_exchange_strong(none, kClaimed)) return;
  header_->error_kind = static_cast<std::uint32_t>(kind);
  const std::size_t length = std::min(text.size(), kErrorText - 1);
  std::memcpy(header_->error_text.data(), text.data(), length);
  header_->error_text[length] = '\0';
  header_->error_state.store(kWritten, std::memory_order_release);
  ring();
}

bool Control::has_failed() const noexcept { return header_->error_state.load(std::memory_order_acquire) != 0; }

std::optional<Error> Control::error() const {
  if (!has_failed()) return std::nullopt;
  const Deadline deadline = Deadline::after(kErrorWriting);
  while (header_->error_state.load(std::memory_order_acquire) != kWritten) {
    // The rank that was writing it may have died.
    if (deadline.expired()) return Error(ErrorKind::kPeerLost, "a rank died while it reported an error");
    std::this_thread::yield();
  }
  return Error(static_cast<ErrorKind>(header_->error_kind), header_->error_text.data());
}

void Control::leave(int rank) noexcept {
  auto* const flag = reinterpret_cast<std::atomic<std::uint32_t>*>(base_ + sizeof(Header) + 64 * rank);
  flag->store(1, std::memory_order_release);
  ring();
}

bool Control::has_left(int rank) const noexcept {
  const auto* const flag = reinterpret_cast<std::atomic<std::uint32_t>*>(base_ + sizeof(Header) + 64 * rank);
  return flag->load(std::memory_order_acquire) != 0;
}

}  // namespace atl::sim
