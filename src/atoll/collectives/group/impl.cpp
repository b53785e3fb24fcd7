// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/impl.h"

#include <pthread.h>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

std::vector<transport::PeerAddress> addresses(const RendezvousResult& result) {
  std::vector<transport::PeerAddress> list;
  for (const Member& member : result.members) list.push_back(member.address);
  return list;
}

// Ranks as logs name them. In a subgroup the group's rank numbers differ from the job's, so both are given.
std::vector<std::string> rank_labels(const RendezvousResult& result) {
  std::vector<std::string> list;
  for (std::size_t rank = 0; rank < result.members.size(); ++rank) {
    std::string label = std::to_string(rank);
    const std::string& name = result.members[rank].address.name;
    if (name != "rank " + label) label.append(" (").append(name).append(" of the job)");
    list.push_back(std::move(label));
  }
  return list;
}

Topology topology_of(const RendezvousResult& result) {
  std::vector<std::string> labels;
  std::vector<double> uplinks;
  for (const Member& member : result.members) {
    labels.push_back(member.island);
    uplinks.push_back(member.uplink);
  }
  Topology topology = Topology::from_labels(labels, uplinks, result.members[0].flat_reduce);
  for (std::size_t island = 0; island < topology.islands.size(); ++island) {
    const Member& first = result.members[static_cast<std::size_t>(topology.islands[island].front())];
    topology.libraries[island] = first.library;
    topology.devices[island] = first.device;
  }
  return topology;
}

std::uint64_t bytes_of(const Call& call) {
  std::uint64_t bytes = 0;
  for (const Segment& segment : call.input.empty() ? call.output : call.input) bytes += segment.bytes;
  return bytes;
}

}  // namespace

Group::Impl::Impl(std::shared_ptr<Context> the_context, const GroupOptions& the_options, const RendezvousResult& result)
    : process(fork_depth()),
      context(std::move(the_context)),
      options(the_options),
      attempt(context->endpoint().options().attempt),
      topology(topology_of(result)),
      default_timeout(options.timeout),
      events(options.events),
      schedules([this](const Shape& wanted) {
        check_schedule(wanted);
        return build_schedule(topology, wanted, options.rank, limits);
      }),
      ports(context->endpoint(), result.group_id, addresses(result), options.rank),
      island_order(ports, topology.island_with(options.rank), island_order_hooks()),
      roll_call({options.rank, options.name, rank_labels(result), options.slow_after,
                 [this](int peer) {
                   const transport::Link* link = ports.link_if_open(peer);
                   return link ? link->describe() : std::string();
                 }}),
      executor(ports, topology, failure, refusals, transport::spin_budget(ports.members_on_this_host()),
               context->impl().fold_threads(
                   options.fold_threads > 0 ? options.fold_threads : usual_fold_threads(ports.members_on_this_host())),
               *this, options.check_data),
      messages(
          ports, failure, attempt, options.check_data, transport::spin_budget(ports.members_on_this_host()),
          [this](const Error& error) { fail(error); },
          [this](int peer) { send_inquiry(peer, /*about_collective=*/false); }, options.prepare_thread) {}

Group::Impl::~Impl() {
  context->impl().remove_group(ports.group_id());
  stop_threads();
}

void Group::Impl::query_island(std::uint64_t sequence) {
  const Inquiry inquiry{find_issued(sequence)};
  if (!inquiry.call) return;
  for (const int rank : topology.island_with(options.rank)) {
    if (rank == options.rank) continue;
    ports.watch(rank);
    if (transport::Link* link = ports.link_if_open(rank)) link->send_control(encode(ports.group_id(), inquiry));
  }
}

IslandOrder::Hooks Group::Impl::island_order_hooks() {
  return {[this](const Error& error) { fail(error); },
          [this](std::chrono::milliseconds delay) {
            const auto poll = [weak = weak_from_this()] {
              if (const auto self = weak.lock()) self->island_order.poll();
            };
            context->endpoint().loop().post([weak = weak_from_this(), delay, poll] {
              if (const auto self = weak.lock()) self->context->endpoint().loop().add_timer_on_loop(delay, false, poll);
            });
          },
          [this](const LibraryStep& step) { query_island(step.number); }};
}

// Numbers the call, and notes that it is issued. Called under the lock.
std::pair<Signature, EventRing::Ticket> Group::Impl::begin(const Call& call) {
  if (!call.number && call.part == 0) ++next_number;
  const std::uint64_t number = call.number.value_or(next_number - 1);
  const Signature signature{call.operation, call.dtype, call.reduce_op, call.root, sequence_of(number, call.part),
                            attempt};
  std::uint64_t bytes = 0;
  if (!is_direct(call.operation)) {
    for (const Segment& segment : call.operation == Operation::kAllGather ? call.output : call.input)
      bytes += segment.bytes;
  }
  return {signature, events.issued(signature, bytes / size_of(call.dtype), bytes_of(call))};
}

std::optional<IssuedCall> Group::Impl::find_issued(std::uint64_t sequence) const {
  const auto event = events.find(sequence);
  return event ? std::optional(IssuedCall{event->signature, event->count}) : std::nullopt;
}

void Group::Impl::run(const Call& call) {
  check_call(call, options.rank, options.size);
  const auto deadline = Deadline::after(timeout_or_default(call.timeout));
  std::unique_lock lock(mutex);
  if (busy || !queue.empty()) start_worker();
  const auto [signature, ticket] = begin(call);
  if (failure.is_set()) {
    lock.unlock();
    events.finished(ticket, false);
    std::rethrow_exception(failure_of(signature, bytes_of(call) / size_of(call.dtype)));
  }
  if (!busy && queue.empty()) {
    busy = true;
    current = signature;
    lock.unlock();
    const auto error = execute(call, signature, deadline, ticket);
    lock.lock();
    busy = false;
    if (!queue.empty() || stopping) changed.notify_all();
    lock.unlock();
    if (error) std::rethrow_exception(error);
    return;
  }
  // Another operation is queued or running, so this call waits its turn on the worker.
  bool finished = false;
  std::exception_ptr error;
  queue.push_back({call, signature, deadline, ticket, [&](std::exception_ptr e) {
                     const std::lock_guard relock(mutex);
                     error = e;
                     finished = true;
                     changed.notify_all();
                   }});
  changed.notify_all();
  changed.wait(lock, [&] { return finished; });
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void Group::Impl::submit(Call call, Completion done) {
  check_call(call, options.rank, options.size);
  const auto deadline = Deadline::after(timeout_or_default(call.timeout));
  {
    const std::lock_guard lock(mutex);
    if (!stopping) {
      start_worker();
      const auto [signature, ticket] = begin(call);
      queue.push_back({std::move(call), signature, deadline, ticket, std::move(done)});
      changed.notify_all();
      return;
    }
  }
  done(failure.is_set() ? failure.get()
                        : std::make_exception_ptr(Error(ErrorKind::kAborted, "the group was shut down")));
}

void Group::Impl::work() {
  pthread_setname_np(pthread_self(), "atoll-group");
  if (options.prepare_thread) options.prepare_thread();
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return (!queue.empty() && !busy) || (stopping && queue.empty()); });
    if (queue.empty()) return;
    Pending next = std::move(queue.front());
    queue.pop_front();
    busy = true;
    current = next.signature;
    lock.unlock();
    next.done(execute(next.call, next.signature, next.deadline, next.ticket));
    next.done = nullptr;  // release what the completion holds before the next call starts
    next.call = {};
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}

std::exception_ptr Group::Impl::execute(const Call& call, const Signature& signature, Deadline deadline,
                                        EventRing::Ticket ticket) {
  const auto elements = bytes_of(call) / size_of(call.dtype);
  const auto give_up = [&](const Error& error) {
    events.finished(ticket, false);
    fail(error);
    return failure_of(signature, elements);
  };
  try {
    failure.throw_if_set();
    refusals.throw_if_refused(signature, elements, options.rank);
    if (call.progress) await_input(call, signature, deadline);
    if (options.check_values != ValueCheck::kNone) check_values(call, signature);
    events.started(ticket);
    shape_of(call, options.rank, options.size, shape);
    executor.run(*schedules.get(shape), call, signature, deadline);
    events.finished(ticket, true);
    return nullptr;
  } catch (const OperationRefused&) {
    events.finished(ticket, false);
    return std::current_exception();
  } catch (const Error& error) {
    return give_up(error);
  } catch (const std::exception& broken) {
    // A device error or lack of memory. The peers are waiting for this rank, so the group fails.
    return give_up(Error(ErrorKind::kUnavailable, describe(signature, elements) + " on rank " +
                                                      std::to_string(options.rank) + ": " + broken.what()));
  } catch (...) {
    return std::current_exception();
  }
}

void Group::Impl::check_values(const Call& call, const Signature& signature) {
  if (!has_reduction(call.operation)) return;
  std::uint64_t before = 0;
  std::uint64_t elements = 0;
  std::optional<NotFinite> found;
  for (const Segment& segment : call.input) {
    if (!found) {
      found = find_not_finite(call.dtype, {segment.data, segment.bytes});
      before = elements;
    }
    elements += segment.bytes / size_of(call.dtype);
  }
  if (!found) {
    warned_of_values = false;
    return;
  }
  const std::string text = describe(signature, elements) + " on rank " + std::to_string(options.rank) + ": element " +
                           std::to_string(before + found->index) + " of the input is " +
                           (found->is_nan ? "NaN" : "infinite");
  if (options.check_values == ValueCheck::kRaise) {
    throw Error(ErrorKind::kUnavailable, text + " (ATOLL_CHECK_VALUES=raise): this rank's computation has diverged");
  }
  // Once diverged, a training keeps producing such values: warn only once.
  if (!std::exchange(warned_of_values, true)) log(LogLevel::kWarning, text + " (ATOLL_CHECK_VALUES)");
}

// Schedules of small groups are checked before their first use, those of larger ones on request. Shapes that differ by
// rank are not known here.
void Group::Impl::check_schedule(const Shape& wanted) const {
  static const bool always = environment("ATOLL_CHECK") == "1";
  std::uint64_t elements = 0;
  for (const auto count : wanted.counts) elements += count;
  const bool small = options.size <= 4 && elements * size_of(wanted.dtype) <= limits.small_bytes;
  if (is_direct(wanted.operation) || !(always || small)) return;
  std::vector<Schedule> all;
  for (int r = 0; r < options.size; ++r) all.push_back(build_schedule(topology, wanted, r, limits));
  const auto fault = check_schedules(topology, std::vector<Shape>(all.size(), wanted), all, limits);
  if (!fault.empty()) {
    throw Error(ErrorKind::kInternal, "the schedule of " + std::string(to_string(wanted.operation)) +
                                          " is faulty: " + fault + "; please report this");
  }
}

void Group::Impl::start_worker() {
  if (worker.joinable()) return;
  try {
    worker = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kUnavailable,
                "rank " + std::to_string(options.rank) + " cannot start the thread of group \"" + options.name +
                    "\": " + error.what() + "; raise the limit of processes (ulimit -u) or free memory");
  }
}

// Called before the caller releases the group: completions may hold it too, and a thread cannot join itself.
void Group::Impl::stop_threads() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    changed.notify_all();
  }
  if (worker.joinable()) worker.join();
  messages.stop();
}

void Group::Impl::shutdown() {
  bool is_drained = false;
  {
    std::unique_lock lock(mutex);
    if (is_shut_down) return;
    is_shut_down = true;
    const auto limit = Deadline::after(std::min<std::chrono::nanoseconds>(default_timeout.load(), kMaxDrain));
    while ((busy || !queue.empty()) && !failure.is_set() && !limit.expired()) {
      changed.wait_for(lock, limit.remaining(std::chrono::milliseconds(100)));
    }
    is_drained = !busy && queue.empty();
  }
  // Failing the group wakes a worker that waits for a library, so that it ends.
  if (!is_drained) fail(Error(ErrorKind::kAborted, "the group was shut down while operations were under way"));
  if (!failure.is_set()) {
    messages.drain(Deadline::after(kMaxDrain));
    notify_peers(ControlType::kLeft, Error(ErrorKind::kAborted, "left"));
    // Not sent to any peer: it only makes later use of the group an error.
    failure.set(Error(ErrorKind::kAborted, "the group was shut down on this rank"));
  }
  stop_threads();
  messages.fail_pending();
  island_order.fail(failure.get());
  write_trace();
}

}  // namespace atl::collectives
