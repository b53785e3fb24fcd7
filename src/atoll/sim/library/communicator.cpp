// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/communicator.h"

#include "atoll/sim/library/execution.h"

namespace atl::sim {

Communicator::Communicator(Store& store, const CommunicatorOptions& options, MemoryOf memory_of)
    : options_(options),
      memory_of_(std::move(memory_of)),
      peers_(meet(store, options.rank, options.size, Deadline::after(options.timeout)), options.rank),
      random_(options.seed * 1000003 + static_cast<std::uint64_t>(options.rank)) {}

Communicator::~Communicator() = default;

std::uint64_t Communicator::next_sequence(Operation operation, int peer) {
  const std::lock_guard lock(mutex_);
  const bool is_message = operation == Operation::kSend || operation == Operation::kReceive;
  return is_message ? messages_[{operation, peer}]++ : collectives_++;
}

Clock::time_point Communicator::run(const Call& call, Clock::time_point begin) {
  Control& control = peers_.control();
  const auto before = draw_delay();
  pause(before);
  Clock::time_point end;
  try {
    end = Execution(peers_, memory_of_, options_.rank, options_.size, call).run(begin + before);
  } catch (const Error& error) {
    const std::string about = std::string(to_string(call.operation)) + ", sequence " + std::to_string(call.sequence);
    control.fail(error.kind(), "in " + about + ": " + error.what());
    const Error first = control.error().value_or(error);
    throw Error(first.kind(), "simccl " + about + ", on rank " + std::to_string(options_.rank) + ": " + first.what());
  }
  const auto after = draw_delay();
  pause(after);
  return end + after;
}

std::chrono::nanoseconds Communicator::draw_delay() {
  if (options_.longest_delay.count() <= 0) return {};
  const std::lock_guard lock(mutex_);
  // One half before, one after.
  return std::chrono::nanoseconds(
      std::uniform_int_distribution<std::int64_t>(0, options_.longest_delay.count() / 2)(random_));
}

void Communicator::pause(std::chrono::nanoseconds time) noexcept {
  if (time.count() > 0) peers_.control().wait([] { return false; }, Deadline::after(time));
}

void Communicator::abort(const std::string& reason) noexcept { peers_.control().fail(ErrorKind::kAborted, reason); }

void Communicator::leave() { peers_.leave(); }

std::optional<Error> Communicator::error() const { return peers_.control().error(); }

}  // namespace atl::sim
