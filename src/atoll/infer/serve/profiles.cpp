// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/profiles.h"

namespace atl::infer {

std::shared_ptr<const wire::Ready> Profiles::find(const ModelHash& hash) {
  const auto found = kept_.find(hash);
  if (found == kept_.end()) return nullptr;
  order_.splice(order_.begin(), order_, found->second);
  return found->second->second;
}

std::shared_ptr<const wire::Ready> Profiles::keep(const ModelHash& hash, const wire::Ready& timed) {
  if (auto known = find(hash)) return known;
  order_.emplace_front(hash, std::make_shared<const wire::Ready>(timed));
  kept_[hash] = order_.begin();
  if (order_.size() > most_) {
    kept_.erase(order_.back().first);
    order_.pop_back();
  }
  return order_.front().second;
}

}  // namespace atl::infer
