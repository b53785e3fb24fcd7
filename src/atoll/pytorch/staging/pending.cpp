// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/pending.h"

#include "atoll/core/error.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {

template <typename Body>
auto Pending::guarded(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPeerLost, "the library " + library_ + " failed inside the island: " + plain_text(error));
  }
}

void Pending::issue(const std::function<c10::intrusive_ptr<c10d::Work>()>& begin, std::function<void()> after) {
  auto work = guarded(begin);
  if (!streams_) {
    items_.push_back({std::move(work), std::move(after)});
    return;
  }
  guarded([&] {
    if (work) work->wait();  // the current stream does, not this thread
    if (after) after();
  });
  items_.push_back({std::move(work), {}});
}

std::vector<c10::intrusive_ptr<c10d::Work>> Pending::works() const {
  std::vector<c10::intrusive_ptr<c10d::Work>> list;
  for (const Item& item : items_) {
    if (item.work) list.push_back(item.work);
  }
  return list;
}

void Pending::check() {
  for (const Item& item : items_) {
    guarded([&] {
      if (!item.work) return;
      item.work->isCompleted();  // some look for errors only then
      if (const auto error = item.work->exception()) std::rethrow_exception(error);
    });
  }
}

void Pending::wait() {
  for (Item& item : items_) {
    guarded([&] {
      if (item.work) waiting_ ? waiting_->wait(item.work) : static_cast<void>(item.work->wait());
      if (item.after) item.after();
    });
  }
  items_.clear();
}

}  // namespace atl::pytorch
