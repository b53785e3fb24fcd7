// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/store/store.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <system_error>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "atoll/core/error.h"
#include "atoll/pytorch/staging/plain_text.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::pytorch {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kAnswerAfterWait{1000};  // for the store to report that a key was not set in time

const c10d::TCPStore* as_tcp(const c10::intrusive_ptr<c10d::Store>& store) {
  return dynamic_cast<const c10d::TCPStore*>(store.get());
}

std::vector<std::uint8_t> to_torch_bytes(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

std::vector<std::byte> from_torch_bytes(const std::vector<std::uint8_t>& bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

// The prefix is protected in torch's class.
struct PrefixReader : c10d::PrefixStore {
  static const std::string& prefix(const c10d::PrefixStore& store) { return store.*(&PrefixReader::prefix_); }
};

bool is_device_prefix(const std::string& prefix) {
  if (prefix.size() < 2 || prefix.back() != '/') return false;
  try {
    return !c10::Device(prefix.substr(0, prefix.size() - 1)).has_index();
  } catch (const std::exception&) {
    return false;  // not the name of a device
  }
}

// Without a free descriptor, TCPStore would retry to connect for longer than the other ranks wait for this one.
void require_descriptor() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0 && (errno == EMFILE || errno == ENFILE)) {
    throw Error(ErrorKind::kUnavailable, "no file descriptor is left for a connection to the job's store (errno " +
                                             std::to_string(errno) + "): raise the limit (ulimit -n)");
  }
  if (probe >= 0) ::close(probe);
}

// TCPStore retries for minutes to reach a server that has ended.
void require_server(const c10d::TCPStore& store, Deadline deadline) {
  try {
    transport::connect_tcp(store.getHost(), store.getPort(),
                           std::chrono::ceil<Milliseconds>(deadline.remaining(kMaxStoreWait)));
  } catch (const Error& error) {
    throw Error(ErrorKind::kStore, std::string("the job's store has ended or cannot be reached: ") + error.what());
  }
}

c10::intrusive_ptr<c10d::Store> clone_if_possible(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline) {
  if (const auto* const tcp = as_tcp(store)) {
    require_descriptor();
    require_server(*tcp, deadline);
    return store_call(store, deadline, "connected to it", [store] { return store->clone(); });
  }
  try {
    return store->clone();
  } catch (const std::exception&) {  // a store written in Python may not offer it
    return nullptr;
  }
}

// Returns whether `body` has ended by the deadline.
bool ends_in_time(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, std::function<void()> body) {
  if (!as_tcp(store)) {
    body();
    return true;
  }
  std::promise<void> end;
  const auto ended = end.get_future();
  auto run = [body = std::move(body), end = std::move(end)]() mutable {
    pthread_setname_np(pthread_self(), "atoll-store");
    body();
    body = nullptr;  // releases the store before the caller continues
    end.set_value();
  };
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are handled by the program's own threads
  try {
    std::thread(std::move(run)).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorKind::kUnavailable,
                std::string("cannot start a thread for a call to the job's store: ") + error.what());
  }
  return ended.wait_for(deadline.remaining(kMaxStoreWait)) == std::future_status::ready;
}

// Returns "at host:port ", or nothing if the store has no server.
std::string whereabouts(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto* const tcp = as_tcp(store);
  return tcp ? "at " + to_string(transport::HostPort{tcp->getHost(), tcp->getPort()}) + " " : "";
}

}  // namespace

void call_store(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, const std::string& action,
                std::function<void()> body) {
  const auto failure = std::make_shared<std::optional<std::string>>();
  const bool ended = ends_in_time(store, deadline, [failure, body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      const std::string text = plain_text(error);
      *failure = text.substr(0, text.find('\n'));
    }
  });
  if (!ended) {
    throw Error(ErrorKind::kStore,
                "the job's store " + whereabouts(store) + "did not answer in time while Atoll " + action);
  }
  if (*failure) throw Error(ErrorKind::kStore, "the job's store failed while Atoll " + action + ": " + **failure);
}

c10::intrusive_ptr<c10d::Store> StoreClones::take(const c10::intrusive_ptr<c10d::Store>& root, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (root_ == root && !idle_.empty()) {
      auto clone = std::move(idle_.back());
      idle_.pop_back();
      return clone;
    }
  }
  return clone_if_possible(root, deadline);
}

void StoreClones::give_back(const c10::intrusive_ptr<c10d::Store>& root, c10::intrusive_ptr<c10d::Store> clone) {
  const std::lock_guard lock(mutex_);
  if (root_ != root) idle_.clear();
  root_ = root;
  idle_.push_back(std::move(clone));
}

StoreAdaptor::StoreAdaptor(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix, StoreClones& clones,
                           Deadline deadline)
    : clones_(clones),
      deadline_(deadline),
      root_(root_of(store)),
      store_(clones.take(root_, deadline)),
      is_own_(store_ != nullptr),
      prefix_(prefixes_of(store) + prefix) {
  if (!is_own_) store_ = root_;
}

StoreAdaptor::~StoreAdaptor() {
  if (is_own_ && !has_failed_) clones_.give_back(root_, std::move(store_));
}

void StoreAdaptor::set(const std::string& key, const std::vector<std::byte>& value) {
  const std::string full = prefix_ + key;
  has_failed_ = true;
  store_call(store_, deadline_, "set key \"" + full + "\"",
             [store = store_, full, bytes = to_torch_bytes(value)] { store->set(full, bytes); });
  has_failed_ = false;
}

std::vector<std::byte> StoreAdaptor::get(const std::string& key, Deadline deadline) {
  const std::string full = prefix_ + key;
  // Zero means forever to a store, so an expired deadline still waits a millisecond.
  const auto left = std::max(std::chrono::ceil<Milliseconds>(deadline.remaining(kMaxStoreWait)), Milliseconds(1));
  const auto wait = [store = store_, full, left, is_own = is_own_] {
    if (is_own) {
      store->setTimeout(left);  // get() waits too: one round trip less than wait() and get()
    } else {
      store->wait({full}, left);
    }
    return from_torch_bytes(store->get(full));
  };
  const auto answer_too = Deadline::after(left + kAnswerAfterWait);
  has_failed_ = true;
  try {
    auto value = store_call(store_, answer_too, "waited for key \"" + full + "\"", wait);
    has_failed_ = false;
    return value;
  } catch (const Error& error) {
    if (deadline.remaining(kMaxStoreWait) > Milliseconds(1) || answer_too.expired()) throw;
    throw Error(ErrorKind::kTimeout, "timed out waiting for key \"" + full + "\" in the job's store");
  }
}

c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed && is_device_prefix(PrefixReader::prefix(*prefixed)) ? prefixed->getUnderlyingStore() : store;
}

std::string prefixes_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  if (!prefixed) return "";
  return prefixes_of(prefixed->getUnderlyingStore()) + PrefixReader::prefix(*prefixed) + "/";
}

c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

std::string host_of(const c10::intrusive_ptr<c10d::Store>& root) {
  const auto* const tcp = as_tcp(root);
  return tcp ? tcp->getHost() : "";
}

std::int64_t count_meetings(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key, int size,
                            Deadline deadline) {
  return store_call(root_of(store), deadline, "counted the meetings of a group",
                    [store, key, size] { return (store->add(key, 1) - 1) / size; });
}

std::vector<std::byte> agree(const c10::intrusive_ptr<c10d::Store>& root, const std::string& key,
                             const std::vector<std::byte>& proposal, Deadline deadline) {
  return store_call(root, deadline, "agreed on the job's name", [root, key, mine = to_torch_bytes(proposal)] {
    try {
      return from_torch_bytes(root->compareSet(key, std::vector<std::uint8_t>{}, mine));
    } catch (const c10::NotImplementedError&) {  // optional for stores
      if (root->add(key + "/claims", 1) == 1) root->set(key, mine);
      return from_torch_bytes(root->get(key));
    }
  });
}

}  // namespace atl::pytorch
