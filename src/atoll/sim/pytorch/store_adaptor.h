// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "atoll/core/store.h"

namespace atl::sim {

/// atl::Store over torch's. Groups of `size` ranks that are made one after the other in the same store get different
/// keys; each rank makes one adaptor per group.
class StoreAdaptor final : public Store {
 public:
  StoreAdaptor(c10::intrusive_ptr<c10d::Store> store, int size);
  void set(const std::string& key, const std::vector<std::byte>& value) override;
  std::vector<std::byte> get(const std::string& key, Deadline deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

}  // namespace atl::sim
