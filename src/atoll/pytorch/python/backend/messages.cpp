// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks.
#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/backend/checks.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

std::uint64_t checked_tag(const char* operation, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, operation, ": tag ", tag, " is negative");
  return static_cast<std::uint64_t>(tag);
}

// A send that waits for its turn, and for its bytes if they come from a device.
struct Departure {
  std::shared_ptr<collectives::Group> group;
  std::function<bool()> is_loaded;  // empty if the bytes are there
  Deadline deadline;
  std::string name;

  // Returns whether the wait is over: the bytes have arrived, or the group has failed. Fails the group when they arrive
  // too late or not at all.
  bool is_due() const noexcept {
    try {
      if (!is_loaded || group->error() || is_loaded()) return true;
      if (!deadline.expired()) return false;
      group->fail(Error(ErrorKind::kTimeout, name + " timed out: its bytes have not arrived from the device"));
    } catch (const std::exception& error) {
      group->fail(Error(ErrorKind::kUnavailable, name + " failed: " + plain_text(error)));
    }
    return true;
  }

  // Calls `go` in its turn, or when `sends` is stopped because the process exits.
  void post(InOrder& sends, const InOrder::Line& line, std::function<void()> go) const {
    sends.post(
        line, [departure = *this] { return departure.is_due(); },
        [departure = *this, go = std::move(go)] {
          if (!departure.is_due()) {
            departure.group->abort("a message was still being copied from the device when the process exited");
          }
          go();
        });
  }
};

using Loaded = std::atomic<std::uint64_t>;

// Posts the parts after the first one, for which `departure` was made.
void post_rest(InOrder& sends, const InOrder::Line& line, Departure departure,
               const std::shared_ptr<StagedMessage>& staged, const std::shared_ptr<Loaded>& loaded) {
  for (std::size_t part = 1; part < staged->parts(); ++part) {
    departure.is_loaded = [staged, part] { return staged->part_is_loaded(part); };
    departure.post(sends, line, [group = departure.group, loaded, end = staged->end_of(part)] {
      if (!group->error()) loaded->store(end, std::memory_order_release);
      group->note_loaded();
    });
  }
}

}  // namespace

// A message and the memory through which it passes.
struct BackendAtoll::Message {
  c10::intrusive_ptr<WorkAtoll> work;
  collectives::Segment memory;
  std::shared_ptr<StagedOperation> operation;  // null for a tensor on the CPU
  // Of an accelerator's tensor, the first if it passes through the host, else the second and, to receive, the third.
  std::shared_ptr<StagedMessage> staged;
  std::shared_ptr<DirectDevice> device;
  std::shared_ptr<DeviceLanding> landing;
};

BackendAtoll::Message BackendAtoll::new_message(const About& about, const at::Tensor& tensor, bool sends, int peer) {
  const auto group = this->group();
  Message message;
  Operands operands;
  message.memory = sends ? operands.read(tensor) : operands.write(tensor);
  if (operands.device().is_cpu()) {
    message.work = open_->new_work(about, std::move(operands), {tensor}, {tensor});
  } else {
    const auto streams = copy_streams(operands.device());
    const auto operation =
        std::make_shared<StagedOperation>(std::move(operands), streams, &CopyStreams::to_device, nullptr, 1);
    const auto* const port = peer < 0 ? nullptr : group->direct_port(peer, message.memory.bytes);
    if (port) message.device = open_->open_parts().process->direct.get(operation->device());
    if (port && sends && !message.device->is_reached(*port)) message.device.reset();
    const auto clock = staging_.clock();
    if (message.device && !sends)
      message.landing = std::make_shared<DeviceLanding>(operation, message.memory, message.device, clock);
    if (!message.device) {
      message.staged = std::make_shared<StagedMessage>(operation, message.memory, clock);
      message.memory = message.staged->host();
    }
    message.operation = operation;
    message.work = open_->new_work(about, operation, {tensor}, {tensor});
  }
  regions_.note(message.work);
  message.work->expect_parts(1);
  return message;
}

WorkPtr BackendAtoll::issue_send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only("send", "tensor", tensors);
  check_rank("send", "destination", destination, size_);
  const auto number = checked_tag("send", tag);
  const OpenGroup::Parts open = open_->open_parts();
  const auto group = open.group;
  if (const auto library = pass_through_.for_message(tensor, destination)) {
    if (!island_->has_all_ranks()) {
      const About about{c10d::OpType::SEND, "atoll:send", c10d::kUnsetTimeout, true};
      return island_messages_.issue(library, about, tensor, {destination, true, tag});
    }
    PlainTensors plain;
    Tensors list = plain.read(tensors);
    return pass_through_.issue_message(library, plain, destination, /*sends=*/true, [&](c10d::Backend& inner) {
      return inner.send(list, group->topology().place_in_island(destination), tag);
    });
  }
  const Message message =
      new_message({c10d::OpType::SEND, "atoll:send", c10d::kUnsetTimeout, true}, tensor, true, destination);
  const auto work = message.work;
  const auto timeout = open_->timeout(c10d::kUnsetTimeout);
  const auto staged = message.staged;
  const auto loaded = staged && staged->parts() > 1 ? std::make_shared<Loaded>(staged->end_of(0)) : nullptr;
  const auto send_within = [=, memory = message.memory,
                            type = wire_type(tensor.scalar_type())](std::chrono::milliseconds limit) {
    if (message.device) {
      for (const at::Tensor& each : message.operation->operands().tensors()) note_use(each, message.device->stream());
    }
    group->send_from(
        {message.device, loaded}, destination, number, type, {memory.data, memory.bytes}, limit,
        [work, operation = message.operation, staged](const std::exception_ptr& error) { work->part_done(error); });
  };
  auto& sends = open.process->sends;
  const InOrder::Line line{group.get(), destination, number};
  const bool is_there = !message.operation || (message.device && message.operation->caller_is_ready());
  if (is_there && sends.is_idle(line)) {
    translated([&] { send_within(timeout); });
    return work;
  }
  std::function<bool()> is_loaded;
  if (staged) is_loaded = [staged] { return staged->part_is_loaded(0); };
  if (message.device) is_loaded = [operation = message.operation] { return operation->caller_is_ready(); };
  const Departure departure{group, is_loaded, Deadline::after(timeout),
                            "send of " + std::to_string(message.memory.bytes) + " bytes (tag " + std::to_string(tag) +
                                ") to rank " + std::to_string(destination) + " on rank " + std::to_string(rank_)};
  if (staged) staged->load();
  departure.post(sends, line, [work, send_within, timeout, deadline = departure.deadline] {
    try {
      send_within(std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining(timeout)));
    } catch (...) {
      work->part_done(std::current_exception());
    }
  });
  if (loaded) post_rest(sends, line, departure, staged, loaded);
  return work;
}

WorkPtr BackendAtoll::receive_from(const char* title, c10d::OpType type, Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only("recv", "tensor", tensors);
  check_output("recv", tensor);
  const auto number = checked_tag("recv", tag);
  const auto group = this->group();
  if (const auto library = source < 0 ? nullptr : pass_through_.for_message(tensor, source)) {
    if (!island_->has_all_ranks()) {
      const About about{type, title, c10d::kUnsetTimeout, true};
      return island_messages_.issue(library, about, tensor, {source, false, tag});
    }
    PlainTensors plain;
    Tensors list = plain.write(tensors);
    return pass_through_.issue_message(library, plain, source, /*sends=*/false, [&](c10d::Backend& inner) {
      return inner.recv(list, group->topology().place_in_island(source), tag);
    });
  }
  const Message message = new_message({type, title, c10d::kUnsetTimeout, true}, tensor, false, source);
  const auto done = [work = message.work, staged = message.staged, landing = message.landing](std::exception_ptr error,
                                                                                              int from) {
    if (!error) work->set_source_rank(from);
    try {
      if (!error && staged) staged->store();
      if (!error && landing) landing->store();
    } catch (...) {
      error = std::current_exception();
    }
    work->part_done(error);
  };
  translated([&] {
    const auto dtype = wire_type(tensor.scalar_type());
    const auto& [data, bytes] = message.memory;
    std::shared_ptr<collectives::Landing> landing = message.landing;
    if (!landing) landing = message.staged;
    landing ? group->receive(source, number, dtype, bytes, landing, std::nullopt, done)
            : group->receive(source, number, dtype, {data, bytes}, std::nullopt, done);
  });
  return message.work;
}

}  // namespace atl::pytorch
