// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/group.h"

#include "atoll/collectives/group/impl.h"
#include "atoll/core/fd.h"

namespace atl::collectives {
namespace {

RendezvousResult find_members(Context& context, Store& store, const GroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorKind::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                                 " is out of range for a group of " + std::to_string(options.size));
  }
  auto& endpoint = context.endpoint();
  Member mine;
  mine.wire_version = kWireVersion;
  mine.size = static_cast<std::uint32_t>(options.size);
  mine.attempt = endpoint.options().attempt;
  mine.key_from_file = key_comes_from_file();
  mine.tls = endpoint.options().tls;
  mine.flat_reduce = options.flat_reduce;
  mine.check_data = options.check_data;
  mine.check_values = static_cast<std::uint8_t>(options.check_values);
  mine.island = options.island;
  mine.device = options.device;
  mine.library = options.library;
  mine.problem = options.problem;
  mine.uplink = options.uplink;
  mine.address = endpoint.address();
  return rendezvous(store, options.name + "/", options.rank, mine, options.timeout);
}

// Kept forever: not destroyed even with static objects.
void keep(std::shared_ptr<void> state) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(state));
}

}  // namespace

Group::Group(std::shared_ptr<Context> context, Store& store, const GroupOptions& options) {
  const RendezvousResult result = find_members(*context, store, options);
  if (!result.key.empty()) context->impl().set_key_once(result.key);
  impl_ = std::make_shared<Impl>(std::move(context), options, result);
  impl_->context->impl().add_group(impl_->ports.group_id(), impl_);
  impl_->watch_clock();
}

Group::~Group() {
  // A forked child has neither the group's threads nor its own copy of the shared memory, and destroying the group
  // would use both; so the group is leaked there.
  if (fork_depth() != impl_->process) {
    keep(std::move(impl_));
    return;
  }
  if (!impl_->is_shut_down) abort("the group was destroyed without shutdown");
  impl_->stop_threads();
  impl_->write_trace();
  impl_->context->impl().remove_group(impl_->ports.group_id());
  // After this no callback of the loop holds the group, so that it is destroyed on this thread and never on the loop's.
  auto& loop = impl_->context->endpoint().loop();
  if (loop.on_loop_thread()) {
    impl_->stop_clock_on_loop();
  } else {
    loop.run_and_wait([this] { impl_->stop_clock_on_loop(); });
  }
}

int Group::rank() const noexcept { return impl_->options.rank; }
int Group::size() const noexcept { return impl_->options.size; }
const GroupOptions& Group::options() const noexcept { return impl_->options; }
const Topology& Group::topology() const noexcept { return impl_->topology; }
void Group::run(const Call& call) { impl_->run(call); }
void Group::submit(Call call, Completion done) { impl_->submit(std::move(call), std::move(done)); }

void Group::Impl::check_peer(bool sends, int peer) const {
  if ((!sends && peer == kAnySource) || (peer >= 0 && peer < options.size && peer != options.rank)) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(sends ? "send" : "receive") + ": rank " +
                                               std::to_string(options.rank) + " cannot " +
                                               (sends ? "send to" : "receive from") + " rank " + std::to_string(peer) +
                                               " in a group of " + std::to_string(options.size));
}

void Group::send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data,
                 std::optional<std::chrono::milliseconds> timeout, Completion done, const MessageOrigin& origin) {
  impl_->check_peer(true, destination);
  impl_->messages.send(destination, tag, dtype, data, Deadline::after(impl_->timeout_or_default(timeout)),
                       std::move(done), origin);
}

void Group::note_loaded() { impl_->ports.endpoint().doorbell().ring_all(); }

void Group::receive(int source, std::uint64_t tag, DataType dtype, std::span<std::byte> data,
                    std::optional<std::chrono::milliseconds> timeout, ReceiveCompletion done) {
  impl_->check_peer(false, source);
  impl_->messages.receive(source, tag, dtype, data, Deadline::after(impl_->timeout_or_default(timeout)),
                          std::move(done));
}

void Group::receive(int source, std::uint64_t tag, DataType dtype, std::uint64_t bytes,
                    std::shared_ptr<Landing> landing, std::optional<std::chrono::milliseconds> timeout,
                    ReceiveCompletion done) {
  impl_->check_peer(false, source);
  impl_->messages.receive(source, tag, dtype, {static_cast<std::byte*>(nullptr), static_cast<std::size_t>(bytes)},
                          Deadline::after(impl_->timeout_or_default(timeout)), std::move(done), std::move(landing));
}

transport::DirectPort* Group::direct_port(int destination, std::uint64_t bytes) const {
  impl_->check_peer(true, destination);
  return impl_->messages.direct_port(destination, bytes);
}

std::uint64_t Group::direct_messages() const noexcept { return impl_->messages.direct_messages(); }

void Group::barrier(std::optional<std::chrono::milliseconds> timeout) {
  Call call;
  call.operation = Operation::kBarrier;
  call.dtype = DataType::kUInt8;
  call.reduce_op = ReduceOp::kBor;
  call.input = call.output = {{&impl_->barrier_byte, 1}};
  call.timeout = timeout;
  run(call);
}

void Group::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  impl_->monitored_barrier(timeout, wait_all_ranks);
}

std::uint64_t Group::sequence() const noexcept { return impl_->next_number.load(); }

void Group::refuse(const std::string& why) { impl_->refuse(why); }
std::uint64_t Group::commit() { return impl_->commit(); }

void Group::refuse_send(int destination, std::uint64_t tag, const std::string& why) {
  impl_->check_peer(true, destination);
  impl_->messages.refuse_send(destination, tag, why);
}

void Group::refuse_receive(int source, std::uint64_t tag, const std::string& why) {
  impl_->check_peer(false, source);
  impl_->messages.refuse_receive(source, tag, why);
}

std::uint64_t Group::commit_message(int peer, bool sends) { return impl_->commit_message(peer, sends); }

void Group::request_step(StepRequest request) { impl_->island_order.request(std::move(request)); }
void Group::give_up_step(const LibraryStep& step) { impl_->island_order.give_up(step); }
void Group::open_island_order() { impl_->island_order.open_link(); }

void Group::refuse_committed_message(int peer, bool sends, const std::string& why) {
  impl_->refuse_committed_message(peer, sends, why);
}

void Group::set_timeout(std::chrono::milliseconds timeout) { impl_->default_timeout.store(timeout); }

void Group::abort(const std::string& reason) noexcept {
  impl_->fail(Error(ErrorKind::kAborted, "rank " + std::to_string(rank()) + " aborted: " + reason));
}

void Group::fail(const Error& error) noexcept { impl_->fail(error); }
void Group::watch(int peer) { impl_->ports.watch(peer); }
std::uint64_t Group::id() const noexcept { return impl_->ports.group_id(); }
bool Group::can_lend() const noexcept {
  return impl_->context->endpoint().options().arena && impl_->ports.members_on_this_host() > 1;
}

const ScheduleLimits& Group::limits() const noexcept { return impl_->limits; }

void Group::when_failed(std::function<void()> listener) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->failure.is_set()) {
      impl_->failure_listeners.push_back(std::move(listener));
      return;
    }
  }
  listener();
}

void Group::shutdown() { impl_->shutdown(); }
std::exception_ptr Group::error() const noexcept { return impl_->failure.get(); }
TimeSplit Group::time_split() const noexcept { return impl_->executor.time_split(); }

std::vector<std::uint64_t> Group::sent_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (int peer = 0; peer < size(); ++peer) bytes.push_back(impl_->executor.sent_bytes(peer));
  return bytes;
}

std::vector<std::pair<int, std::string>> Group::links() const {
  std::vector<std::pair<int, std::string>> list;
  for (int peer = 0; peer < size(); ++peer) {
    transport::Link* link = peer == rank() ? nullptr : impl_->ports.link_if_open(peer);
    if (link) list.emplace_back(peer, link->describe());
  }
  return list;
}

std::shared_ptr<const Schedule> Group::schedule(const Shape& shape) { return impl_->schedules.get(shape); }
std::string Group::dump_json() const { return impl_->dump_json(); }

}  // namespace atl::collectives
