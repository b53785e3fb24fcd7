// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/server.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <list>
#include <thread>
#include <utility>

#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/infer/serve/connection.h"
#include "atoll/infer/serve/context.h"
#include "atoll/transport/stream/stream_listener.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kTick{50};

ServerOptions checked(ServerOptions options) {
  if (!options.credentials) throw Error(ErrorKind::kInvalidArgument, "a server needs a key or certificates");
  if (::access(options.worker_program.c_str(), X_OK) != 0) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("the worker program " + options.worker_program + " cannot be run", errno));
  }
  return options;
}

}  // namespace

ServerContext::ServerContext(const ServerOptions& given, Loop& serving, Loop& hashing_loop, Loop& disk_loop)
    : options(given),
      loop(serving),
      hashing(hashing_loop),
      disk(disk_loop),
      door(std::make_unique<MemoryDoor>(serving)),
      cache(given.cache_folder, given.cache_bytes),
      turns(std::max<std::size_t>(given.turns, 1), [](Turns::Key key) {
        // Only served models request turns, and they are not const.
        static_cast<ServedModel*>(const_cast<void*>(key))->on_turn();
      }) {}

void ServerContext::retry_waiting() {
  ++freed;
  const std::deque<ServedModel*> now = std::move(waiting);
  waiting.clear();
  for (ServedModel* model : now) model->begin();
}

void ServerContext::retry_waiting_later() {
  loop.post([this] { retry_waiting(); });
}

struct Server::Impl : public transport::StreamListener::Owner {
  explicit Impl(ServerOptions given)
      : options(checked(std::move(given))),
        context(options, loop, hashing, disk),
        loop("atoll-serve"),
        disk("atoll-disk"),
        hashing("atoll-hash") {
    loop.run_and_wait([this] {
      listener = std::make_unique<transport::StreamListener>(loop, *this, options.host, options.port);
      address = listener->address();
      timer = loop.add_timer_on_loop(kTick, true, [this] { tick(); });
    });
  }

  // Returns whether everything has ended. Otherwise a thread still waits for the disk and will use this object
  // afterwards.
  bool end() {
    loop.run_and_wait([this] {
      listener.reset();
      loop.cancel_timer_on_loop(timer);
      connections.clear();
      context.door.reset();
      context.waiting.clear();
    });
    context.cache.stop();
    const Deadline until = Deadline::after(options.end_limit);
    if (is_idle(disk, until) && is_idle(hashing, until)) return true;
    log(LogLevel::kWarning, "serve: the disk with " + options.cache_folder + " has not answered for " +
                                std::to_string(options.end_limit.count()) +
                                " ms: the server ends and abandons the thread that waits for it");
    return false;
  }

  static bool is_idle(Loop& thread, Deadline until) {
    const auto idle = std::make_shared<std::promise<void>>();
    const std::future<void> answer = idle->get_future();
    thread.post([idle] { idle->set_value(); });
    return answer.wait_until(until.when()) == std::future_status::ready;
  }

  void on_connection(Fd socket, const std::string& peer) override {
    if (connections.size() >= options.most_connections) {
      ++context.counts.refused;
      log(LogLevel::kWarning, "serve: " + peer + " is turned away: there are already " +
                                  std::to_string(connections.size()) + " clients, the maximum");
      return;
    }
    ++context.counts.accepted;
    connections.push_back(std::make_unique<Connection>(context, std::move(socket), peer, [this](Connection& over) {
      // Posted, because the connection may be inside a call.
      loop.post(
          [this, gone = &over] { std::erase_if(connections, [&](const auto& each) { return each.get() == gone; }); });
    }));
  }

  void tick() {
    const auto now = Clock::now();
    for (const Turns::Key key : context.turns.longer_than(options.compute_limit, now)) {
      static_cast<ServedModel*>(const_cast<void*>(key))->on_overrun();
    }
    context.door->on_tick(now);
    context.queued_for_clients = 0;
    for (const auto& connection : connections) {
      connection->on_tick(now);
      context.queued_for_clients += static_cast<const ServedModel::Client&>(*connection).queued_bytes();
    }
  }

  const std::uint32_t process = fork_depth();
  const ServerOptions options;
  ServerContext context;
  std::list<std::unique_ptr<Connection>> connections;
  std::unique_ptr<transport::StreamListener> listener;
  std::string address;
  Loop::TimerId timer = 0;
  Loop loop;  // destroyed before what its tasks use
  Loop disk;  // this one and `hashing` post to `loop`
  Loop hashing;
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() {
  // A forked child has neither the threads nor the workers, and must not kill them.
  if (impl_->process != fork_depth() || !impl_->end()) static_cast<void>(impl_.release());
}

std::string Server::address() const { return impl_->address; }

ServerCounts Server::counts() const {
  ServerCounts counts;
  impl_->loop.run_and_wait([&] {
    counts = impl_->context.counts;
    counts.connections = impl_->connections.size();
    counts.workers = impl_->context.with_worker.size();
    counts.waiting_models = impl_->context.waiting.size();
    counts.waiting_inferences = impl_->context.turns.waiting();
  });
  return counts;
}

bool Server::drain(Deadline deadline, const std::function<void()>& check) {
  constexpr std::chrono::milliseconds kLook{5};
  constexpr std::chrono::milliseconds kBetweenChecks{50};
  Deadline next_check = Deadline::after(kBetweenChecks);
  impl_->loop.run_and_wait([&] {
    impl_->context.is_draining = true;
    impl_->listener.reset();
    for (const auto& connection : impl_->connections) connection->drain();
  });
  for (;;) {
    bool is_running = false;
    impl_->loop.run_and_wait([&] {
      is_running = std::any_of(impl_->connections.begin(), impl_->connections.end(),
                               [](const auto& connection) { return connection->is_running(); });
    });
    if (!is_running || deadline.expired()) return !is_running;
    std::this_thread::sleep_for(kLook);
    if (!check || !next_check.expired()) continue;
    check();
    next_check = Deadline::after(kBetweenChecks);
  }
}

}  // namespace atl::infer
