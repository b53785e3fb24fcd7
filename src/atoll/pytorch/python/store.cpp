// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "atoll/core/error.h"

namespace atl::pytorch {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kLongestWait = std::chrono::hours(24);

std::vector<std::uint8_t> to_torch_bytes(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

std::vector<std::byte> from_torch_bytes(const std::vector<std::uint8_t>& bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

template <typename Body>
auto store_call(const std::string& action, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kStore, "the job's store failed while Atoll " + action + ": " + first_line(error));
  }
}

// Torch keeps the prefix to itself and its subclasses.
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

// What torch's prefixes make of a key, in front of it.
std::string prefixes_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  if (!prefixed) return "";
  return prefixes_of(prefixed->getUnderlyingStore()) + PrefixReader::prefix(*prefixed) + "/";
}

// Where no descriptor is left, TCPStore would try to connect for longer than others wait for this rank.
void require_descriptor() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0 && (errno == EMFILE || errno == ENFILE)) {
    throw Error(ErrorKind::kUnavailable, "no file descriptor is left for a connection to the job's store (errno " +
                                             std::to_string(errno) + "): raise the limit (ulimit -n)");
  }
  if (probe >= 0) ::close(probe);
}

c10::intrusive_ptr<c10d::Store> clone_if_possible(const c10::intrusive_ptr<c10d::Store>& store) {
  if (dynamic_cast<c10d::TCPStore*>(store.get())) require_descriptor();
  try {
    return store->clone();
  } catch (const std::exception&) {  // a store written in Python may not offer it
    return nullptr;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> StoreClones::take(const c10::intrusive_ptr<c10d::Store>& root) {
  {
    const std::lock_guard lock(mutex_);
    if (root_ == root && !idle_.empty()) {
      auto clone = std::move(idle_.back());
      idle_.pop_back();
      return clone;
    }
  }
  return clone_if_possible(root);
}

void StoreClones::give_back(const c10::intrusive_ptr<c10d::Store>& root, c10::intrusive_ptr<c10d::Store> clone) {
  const std::lock_guard lock(mutex_);
  if (root_ != root) idle_.clear();
  root_ = root;
  idle_.push_back(std::move(clone));
}

StoreAdaptor::StoreAdaptor(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix, StoreClones& clones)
    : clones_(clones),
      root_(root_of(store)),
      store_(clones.take(root_)),
      is_own_(store_ != nullptr),
      prefix_(prefixes_of(store) + prefix) {
  if (!is_own_) store_ = root_;
}

StoreAdaptor::~StoreAdaptor() {
  if (is_own_ && !has_failed_) clones_.give_back(root_, std::move(store_));
}

void StoreAdaptor::set(const std::string& key, const std::vector<std::byte>& value) {
  has_failed_ = true;
  store_call("set key \"" + prefix_ + key + "\"", [&] { store_->set(prefix_ + key, to_torch_bytes(value)); });
  has_failed_ = false;
}

std::vector<std::byte> StoreAdaptor::get(const std::string& key, Deadline deadline) {
  const std::string full = prefix_ + key;
  // Zero means forever to a store, so an expired deadline still waits a millisecond.
  const auto left = std::max(std::chrono::ceil<Milliseconds>(deadline.remaining(kLongestWait)), Milliseconds(1));
  try {
    if (is_own_) {
      store_->setTimeout(left);  // get() waits too: one round trip less than wait() and get()
    } else {
      store_->wait({full}, left);
    }
    return from_torch_bytes(store_->get(full));
  } catch (const std::exception& error) {
    has_failed_ = true;
    if (deadline.remaining(kLongestWait) <= Milliseconds(1)) {
      throw Error(ErrorKind::kTimeout, "timed out waiting for key \"" + full + "\" in the job's store");
    }
    throw Error(ErrorKind::kStore,
                "the job's store failed while Atoll waited for key \"" + full + "\": " + first_line(error));
  }
}

c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed && is_device_prefix(PrefixReader::prefix(*prefixed)) ? prefixed->getUnderlyingStore() : store;
}

c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

std::string host_of(const c10::intrusive_ptr<c10d::Store>& root) {
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(root.get());
  return tcp ? tcp->getHost() : "";
}

std::int64_t count_meetings(c10d::Store& store, const std::string& key, int size) {
  return store_call("counted the meetings of a group", [&] { return (store.add(key, 1) - 1) / size; });
}

std::vector<std::byte> agree(c10d::Store& root, const std::string& key, const std::vector<std::byte>& proposal) {
  return store_call("agreed on the job's name", [&] {
    const auto mine = to_torch_bytes(proposal);
    try {
      return from_torch_bytes(root.compareSet(key, std::vector<std::uint8_t>{}, mine));
    } catch (const c10::NotImplementedError&) {  // optional for stores
      if (root.add(key + "/claims", 1) == 1) root.set(key, mine);
      return from_torch_bytes(root.get(key));
    }
  });
}

}  // namespace atl::pytorch
