// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/store_adaptor.h"

#include <algorithm>

#include "atoll/core/error.h"

namespace atl::sim {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kMaxAdaptorWait = std::chrono::hours(24);

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

StoreAdaptor::StoreAdaptor(c10::intrusive_ptr<c10d::Store> store, int size) : store_(std::move(store)) {
  try {
    prefix_ = "simccl/" + std::to_string((store_->add("simccl/arrivals", 1) - 1) / size) + "/";
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kStore, "simccl: the job's store failed: " + first_line(error));
  }
}

void StoreAdaptor::set(const std::string& key, const std::vector<std::byte>& value) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(value.data());
  try {
    store_->set(prefix_ + key, std::vector<std::uint8_t>(begin, begin + value.size()));
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kStore, "simccl: the job's store failed: " + first_line(error));
  }
}

std::vector<std::byte> StoreAdaptor::get(const std::string& key, Deadline deadline) {
  // Zero means forever to a store, so an expired deadline still waits a millisecond.
  const auto left = std::max(std::chrono::ceil<Milliseconds>(deadline.remaining(kMaxAdaptorWait)), Milliseconds(1));
  try {
    store_->wait({prefix_ + key}, left);
    const auto value = store_->get(prefix_ + key);
    const auto* const begin = reinterpret_cast<const std::byte*>(value.data());
    return {begin, begin + value.size()};
  } catch (const std::exception& error) {
    const bool late = deadline.remaining(kMaxAdaptorWait) <= Milliseconds(1);
    throw Error(late ? ErrorKind::kTimeout : ErrorKind::kStore,
                "simccl: no key \"" + prefix_ + key + "\" in the job's store: " + first_line(error));
  }
}

}  // namespace atl::sim
