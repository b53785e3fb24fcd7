// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/process_group.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr double kMaxDelay = 60;
// A failed operation blocks its stream this long, as a kernel would until it is aborted.
constexpr Milliseconds kHold{5'000};
constexpr Milliseconds kClosingSlack{5'000};  // for an operation that has passed its deadline to end
constexpr Milliseconds kMaxStoreWait = std::chrono::hours(24);

bool switched_on(const char* name) {
  const std::string value = environment(name);
  TORCH_CHECK_VALUE(value.empty() || value == "0" || value == "1", name, " is \"", value, "\"; it must be 0 or 1");
  return value == "1";
}

std::chrono::nanoseconds longest_delay() {
  const double seconds = number_from("ATOLL_SIM_DELAY", 0);
  TORCH_CHECK_VALUE(seconds <= kMaxDelay, "ATOLL_SIM_DELAY is ", seconds, " seconds; at most ", kMaxDelay,
                    " are allowed");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

/// atl::Store over torch's. Groups of `size` ranks that are made one after the other in the same store get different
/// keys; each rank makes one adaptor per group.
class StoreAdaptor final : public Store {
 public:
  StoreAdaptor(c10::intrusive_ptr<c10d::Store> store, int size) : store_(std::move(store)) {
    called([&] { prefix_ = "simccl/" + std::to_string((store_->add("simccl/arrivals", 1) - 1) / size) + "/"; });
  }
  void set(const std::string& key, const std::vector<std::byte>& value) override {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(value.data());
    called([&] { store_->set(prefix_ + key, std::vector<std::uint8_t>(begin, begin + value.size())); });
  }
  std::vector<std::byte> get(const std::string& key, Deadline deadline) override {
    // Zero means forever to a store, so an expired deadline still waits a millisecond.
    const auto left = std::max(std::chrono::ceil<Milliseconds>(deadline.remaining(kMaxStoreWait)), Milliseconds(1));
    try {
      store_->wait({prefix_ + key}, left);
      const auto value = store_->get(prefix_ + key);
      const auto* const begin = reinterpret_cast<const std::byte*>(value.data());
      return {begin, begin + value.size()};
    } catch (const std::exception& error) {
      const bool late = deadline.remaining(kMaxStoreWait) <= Milliseconds(1);
      throw Error(late ? ErrorKind::kTimeout : ErrorKind::kStore,
                  "simccl: no key \"" + prefix_ + key + "\" in the job's store: " + first_line(error));
    }
  }

 private:
  static std::string first_line(const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
    return text.substr(0, text.find('\n'));
  }
  static void called(const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      throw Error(ErrorKind::kStore, "simccl: the job's store failed: " + first_line(error));
    }
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

CommunicatorOptions options_of(int rank, int size, Milliseconds timeout) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  options.longest_delay = longest_delay();
  options.seed = static_cast<std::uint64_t>(number_from("ATOLL_SIM_SEED", 0));
  return options;
}

}  // namespace

ProcessGroupSimccl::ProcessGroupSimccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Milliseconds timeout)
    : c10d::Backend(rank, size),
      options_(c10::make_intrusive<c10d::Backend::Options>("simccl", timeout)),
      made_in_(fork_depth()),
      reorder_(switched_on("ATOLL_SIM_REORDER")),
      is_serial_(switched_on("ATOLL_SIM_SERIAL") && !reorder_),
      link_bytes_per_s_(number_from("ATOLL_SIM_LINK", 0)),
      store_(std::move(store)),
      joining_(options_of(rank, size, timeout)),
      timeout_ms_(timeout.count()) {
  init();
}

ProcessGroupSimccl::~ProcessGroupSimccl() {
  gate_->set(nullptr);
  // Operations under way keep the communicator alive. In a forked child it belongs to threads that the child does not
  // have.
  if (made_in_ != fork_depth()) new std::shared_ptr<Communicator>(std::move(communicator_));
}

std::shared_ptr<Communicator> ProcessGroupSimccl::communicator() const {
  const std::lock_guard lock(communicator_mutex_);
  return communicator_;
}

void ProcessGroupSimccl::connect() {
  const std::lock_guard only_once(connecting_mutex_);
  if (communicator()) return;
  try {
    StoreAdaptor meeting_place(store_, size_);
    auto met = std::make_shared<Communicator>(meeting_place, joining_, [](int index) -> DeviceMemory& {
      return device(static_cast<c10::DeviceIndex>(index)).memory();
    });
    const std::lock_guard lock(communicator_mutex_);
    communicator_ = std::move(met);
  } catch (const Error& error) {
    throw_as_torch(error);
  }
}

void ProcessGroupSimccl::eagerConnectSingleDevice(at::Device /*device*/) {
  check_open();
  connect();
}

void ProcessGroupSimccl::check_open() const {
  if (made_in_ != fork_depth()) {
    throw_as_torch(Error(ErrorKind::kUnavailable,
                         "simccl: the group belongs to the parent of this forked process and cannot be used here"));
  }
  if (closed_.load()) {
    throw_as_torch(Error(ErrorKind::kAborted, "simccl: the group was shut down on rank " + std::to_string(rank_)));
  }
  const auto known = communicator();
  if (const auto error = known ? known->error() : std::nullopt) {
    throw_as_torch(Error(error->kind(), "simccl: the group failed earlier, seen on rank " + std::to_string(rank_) +
                                            ": " + error->what()));
  }
}

ProcessGroupSimccl::Regions& ProcessGroupSimccl::regions() {
  thread_local Regions of_thread;
  return of_thread;
}

ProcessGroupSimccl::WorkPtr ProcessGroupSimccl::issue(const About& about, std::vector<Operands> all,
                                                      const Tensors& inputs, Tensors outputs) {
  check_open();
  connect();
  if (regions().open > 0) {
    regions().waiting.push_back({c10::intrusive_ptr<ProcessGroupSimccl>::unsafe_reclaim_from_nonowning(this), about,
                                 std::move(all), inputs, std::move(outputs)});
    return nullptr;
  }
  const auto work = begin(about, std::move(all), inputs, std::move(outputs));
  if (about.async) return work;
  return finished_on_stream(*work);
}

c10::intrusive_ptr<WorkSimccl> ProcessGroupSimccl::begin(const About& about, std::vector<Operands> all,
                                                         const Tensors& inputs, Tensors outputs) {
  const auto timeout = about.timeout >= Milliseconds(0) ? about.timeout : Milliseconds(timeout_ms_.load());
  std::vector<WorkSimccl::Part> parts;
  std::uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    sequence = collectives_.load();
    for (Operands& operands : all) parts.push_back(issue_one(std::move(operands), timeout));
  }
  const WorkSimccl::Facts facts{about.type, about.title, rank_, sequence, about.type == c10d::OpType::BARRIER};
  return c10::make_intrusive<WorkSimccl>(facts, std::move(parts), inputs, std::move(outputs), communicator_);
}

// Synchronous operations are a part of the caller's stream, as NCCL's are, whose caller gets no Work either.
ProcessGroupSimccl::WorkPtr ProcessGroupSimccl::finished_on_stream(WorkSimccl& work) {
  if (work.blocks_host()) {
    work.wait();
    return nullptr;
  }
  for (const auto& part : work.parts()) stream_of(current_stream(part.index)).wait_for(part.done);
  return nullptr;
}

StreamLease& ProcessGroupSimccl::lane(c10::DeviceIndex index, const Call& call) {
  const bool is_message = call.operation == Operation::kSend || call.operation == Operation::kReceive;
  const auto kind = is_message ? call.operation : Operation::kBarrier;  // one kind for all collectives
  const int number = is_message ? call.root : reorder_ ? static_cast<int>(call.sequence % kSlots) : 0;
  auto& lease = lanes_[{index, kind, number}];
  if (!lease) lease = std::make_unique<StreamLease>(index);
  return *lease;
}

void ProcessGroupSimccl::wait_for_overlapping(const Call& call, Stream& stream) {
  std::erase_if(touched_, [](const Touched& touched) { return touched.done.is_reached(); });
  Touched mine{call.input, {}};
  mine.regions.insert(mine.regions.end(), call.output.begin(), call.output.end());
  for (const Touched& earlier : touched_) {
    const bool overlaps = std::ranges::any_of(earlier.regions, [&](const Region& a) {
      return std::ranges::any_of(mine.regions, [&](const Region& b) { return overlap(a, b); });
    });
    if (overlaps) stream.wait_for(earlier.done);
  }
  touched_.push_back(std::move(mine));
}

WorkSimccl::Part ProcessGroupSimccl::issue_one(Operands operands, Milliseconds timeout) {
  Call call = operands.call();
  const bool is_message = call.operation == Operation::kSend || call.operation == Operation::kReceive;
  call.sequence = communicator_->next_sequence(call.operation, call.root);
  if (!is_message) ++collectives_;
  call.timeout = timeout;
  call.duration = time_of(static_cast<double>(operands.bytes()), link_bytes_per_s_);

  const StreamLease& place = lane(operands.index(), call);
  Stream& stream = place.queue();
  stream.wait_for(stream_of(current_stream(operands.index())).record());
  Flow& flow = is_message ? flows_[{call.operation, call.root}]
                          : flows_[{Operation::kBarrier, static_cast<int>(call.sequence % kSlots)}];
  stream.wait_for(flow.last);
  const bool may_overtake = reorder_ && !is_message;
  if (may_overtake) wait_for_overlapping(call, stream);
  for (const at::Tensor& tensor : operands.tensors()) note_use(tensor.storage().data_ptr(), place.get());

  auto outcome = std::make_shared<Outcome>();
  const bool is_modelled = call.duration.count() > 0;
  auto run = [communicator = communicator_, call = std::move(call), outcome, gate = gate_](Clock::time_point begin) {
    try {
      const auto end = communicator->run(call, begin);
      outcome->set(nullptr);
      return end;
    } catch (const Error& error) {
      const c10::SourceLocation here{"simccl", __FILE__, static_cast<std::uint32_t>(__LINE__)};
      outcome->set(std::make_exception_ptr(c10::DistBackendError(here, error.what())));
      gate->wait(Deadline::after(kHold));
    } catch (...) {
      communicator->abort("an unexpected exception");
      outcome->set(std::current_exception());
    }
    return std::max(begin, Clock::now());
  };
  const auto enqueue = [&] {
    stream.enqueue_open(std::move(run), is_modelled);
    return stream.record();
  };
  LibraryOrder& order = device(operands.index()).library_order();
  flow = {is_serial_ ? order.issue(stream, is_message, enqueue) : enqueue(), outcome};
  order.note(flow.last);
  if (may_overtake) touched_.back().done = flow.last;
  return {outcome, flow.last, operands.index()};
}

void ProcessGroupSimccl::startCoalescing() { ++regions().open; }

ProcessGroupSimccl::WorkPtr ProcessGroupSimccl::endCoalescing() {
  TORCH_CHECK(regions().open > 0, "end of a coalescing region that this thread has not started");
  if (--regions().open > 0) return nullptr;
  std::vector<WorkSimccl::Part> parts;
  Tensors outputs;
  bool async = false;
  for (Waiting& each : std::exchange(regions().waiting, {})) {
    const auto work = each.group->begin(each.about, std::move(each.all), each.inputs, std::move(each.outputs));
    if (each.group.get() != this) continue;
    parts.insert(parts.end(), work->parts().begin(), work->parts().end());
    outputs.insert(outputs.end(), work->outputs().begin(), work->outputs().end());
    async = each.about.async;
  }
  if (parts.empty()) return nullptr;
  const WorkSimccl::Facts facts{c10d::OpType::COALESCED, "simccl:coalesced", rank_, collectives_.load(), false};
  const auto work =
      c10::make_intrusive<WorkSimccl>(facts, std::move(parts), Tensors{}, std::move(outputs), communicator_);
  if (async) return work;
  return finished_on_stream(*work);
}

c10d::ErrorType ProcessGroupSimccl::getError() {
  const auto known = communicator();
  const auto error = known ? known->error() : std::nullopt;
  if (!error) return c10d::ErrorType::SUCCESS;
  if (error->kind() == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
  return error->kind() == ErrorKind::kPeerLost ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

void ProcessGroupSimccl::abort() {
  if (made_in_ != fork_depth()) return;
  if (const auto known = communicator()) known->abort("abort() was called on rank " + std::to_string(rank_));
  gate_->set(nullptr);
  std::set<c10::DeviceIndex> devices;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, lease] : lanes_) devices.insert(std::get<0>(key));
  }
  for (const c10::DeviceIndex index : devices) device(index).library_order().wait();
}

void ProcessGroupSimccl::shutdown() {
  if (made_in_ != fork_depth() || closed_.exchange(true)) return;
  std::vector<Flow> flows;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, flow] : flows_) {
      if (flow.outcome) flows.push_back(flow);
    }
  }
  const auto deadline = Deadline::after(Milliseconds(timeout_ms_.load()) + kClosingSlack);
  for (const Flow& flow : flows) {
    if (!flow.outcome->wait(deadline)) abort();
  }
  gate_->set(nullptr);
  for (const Flow& flow : flows) {
    if (flow.outcome->is_set()) flow.last.wait();  // until its modelled end
  }
  if (const auto known = communicator()) known->leave();
}

}  // namespace atl::sim
