// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/island_messages.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <string>
#include <utility>

#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

struct IslandMessages::Message {
  std::shared_ptr<Library> library;
  std::shared_ptr<IslandLibrary> island;
  std::weak_ptr<collectives::Group> group;  // weak: the group holds this while it waits
  std::shared_ptr<StagedOperation> operation;
  at::Tensor memory;
  int place = 0;  // the peer's rank in the island
  End end;
  std::chrono::milliseconds timeout;
};

// Called by the issuer.
void IslandMessages::carry(const Message& message) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream stream = message.operation->streams().messages();
  const c10::StreamGuard guard(stream);
  message.operation->follow_caller(stream);
  std::vector<at::Tensor> list{message.memory};
  message.operation->outward().issue([&] {
    c10d::Backend& inner = message.library->in();
    return message.end.sends ? inner.send(list, message.place, message.end.tag)
                             : inner.recv(list, message.place, message.end.tag);
  });
  message.operation->chunk_stored();
  message.island->watch_results(message.operation, message.timeout);
}

WorkPtr IslandMessages::issue(const std::shared_ptr<Library>& library, const About& about, const at::Tensor& tensor,
                              const End& end) {
  const auto [process, group] = open_->open_parts();
  if (const auto error = group->error()) {
    note_raised(process->watchdog, *group);
    std::rethrow_exception(as_torch(error));
  }
  const int rank = open_->rank();
  Operands operands;
  const std::uint64_t bytes = (end.sends ? operands.read(tensor) : operands.write(tensor)).bytes;
  const at::Tensor memory = operands.tensors().front();
  const auto streams = staging_.streams(operands.device());
  const auto operation =
      std::make_shared<StagedOperation>(std::move(operands), streams, &CopyStreams::messages, library.get(), 1);
  const std::uint64_t number = translated([&, group = group] { return group->commit_message(end.peer, end.sends); });
  const auto work = open_->new_work(about, operation, {tensor}, {tensor});
  regions_.note(work);
  work->expect_parts(1);
  const auto timeout = open_->timeout(about.timeout);
  const Message message{library, island_, group, operation, memory, group->topology().place_in_island(end.peer),
                        end,     timeout};
  const auto go = [message, work](const std::exception_ptr& error) {
    if (error) return work->part_done(error);
    try {
      carry(message);
      work->part_done(nullptr);
    } catch (const Error& failure) {
      const auto live = message.group.lock();
      work->part_done(live ? account_of_library_failure(*live, failure) : std::current_exception());
    } catch (...) {
      work->part_done(std::current_exception());
    }
  };
  const std::string peer = "rank " + std::to_string(end.peer);
  const std::string text = (end.sends ? "send of " : "recv of ") + std::to_string(bytes) + " bytes (tag " +
                           std::to_string(end.tag) + (end.sends ? ") to " : ") from ") + peer + " on rank " +
                           std::to_string(rank) + " timed out: " + peer + " has not called its end";
  const collectives::LibraryStep step{collectives::LibraryStep::Kind::kMessage, end.sends ? rank : end.peer,
                                      end.sends ? end.peer : rank, number};
  staging_.library_queue()->enqueue({step, go, Deadline::after(timeout), text});
  return work;
}

}  // namespace atl::pytorch
