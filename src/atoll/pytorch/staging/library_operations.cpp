// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/library_operations.h"

#include "atoll/core/error.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {

template <typename Body>
auto LibraryOperations::guarded(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPeerLost, "the library " + library_ + " failed inside the island: " + plain_text(error));
  }
}

void LibraryOperations::issue(const std::function<c10::intrusive_ptr<c10d::Work>()>& begin,
                              std::function<void()> after) {
  auto work = guarded(begin);
  if (!on_accelerator_) {
    items_.push_back({std::move(work), std::move(after)});
    return;
  }
  guarded([&] {
    if (work) work->wait();  // makes the current stream wait, not this thread
    if (after) after();
  });
  items_.push_back({std::move(work), {}});
}

std::vector<c10::intrusive_ptr<c10d::Work>> LibraryOperations::works() const {
  std::vector<c10::intrusive_ptr<c10d::Work>> list;
  for (const Item& item : items_) {
    if (item.work) list.push_back(item.work);
  }
  return list;
}

void LibraryOperations::check() {
  for (const Item& item : items_) {
    guarded([&] {
      if (!item.work) return;
      item.work->isCompleted();  // some works look for errors only here
      if (const auto error = item.work->exception()) std::rethrow_exception(error);
    });
  }
}

void LibraryOperations::wait() {
  for (Item& item : items_) {
    guarded([&] {
      if (item.work) waiter_ ? waiter_->wait(item.work) : static_cast<void>(item.work->wait());
      if (item.after) item.after();
    });
  }
  items_.clear();
}

}  // namespace atl::pytorch
