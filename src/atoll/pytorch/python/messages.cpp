// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks.
#include "atoll/pytorch/inner/dtype.h"
#include "atoll/pytorch/inner/plain_text.h"
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/checks.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

std::uint64_t checked_tag(const char* operation, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, operation, ": tag ", tag, " is negative");
  return static_cast<std::uint64_t>(tag);
}

// Of `rank` in its own island.
int place_in_island(const collectives::Topology& topology, int rank) {
  const auto& ranks = topology.islands[static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank)])];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// c10d gives messages none.
struct NoOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
};

// A message that waits for its turn, and for its bytes when they come from a device.
struct Departure {
  std::shared_ptr<collectives::Group> group;
  std::shared_ptr<Piece> piece;  // null: the bytes are there
  Deadline deadline;
  std::string name;

  // Whether there is nothing to wait for any more: the bytes have come, or the group has failed. It does here when they come
  // too late or never.
  bool is_due() const noexcept {
    try {
      if (!piece || group->error() || piece->is_loaded()) return true;
      if (!deadline.expired()) return false;
      group->fail(Error(ErrorKind::kTimeout, name + " timed out: its bytes have not arrived from the device"));
    } catch (const std::exception& error) {
      group->fail(Error(ErrorKind::kUnavailable, name + " failed: " + plain_text(error)));
    }
    return true;
  }
};

}  // namespace

// A message's memory as the bridge sees it.
struct BackendAtoll::Message {
  c10::intrusive_ptr<WorkAtoll> work;
  collectives::Segment memory;
  std::shared_ptr<Piece> piece;  // of an accelerator's tensor
};

BackendAtoll::Message BackendAtoll::new_message(const About& about, const at::Tensor& tensor, bool sends) {
  const auto group = this->group();
  Message message;
  Operands operands;
  message.memory = sends ? operands.read(tensor) : operands.write(tensor);
  if (operands.device().is_cpu()) {
    message.work = open_->new_work(about, std::move(operands), {tensor}, {tensor});
  } else {
    collectives::Call call;
    call.operation = sends ? collectives::Operation::kSend : collectives::Operation::kReceive;
    call.dtype = wire_type(tensor.scalar_type());
    (sends ? call.input : call.output).push_back(message.memory);
    const auto streams = copy_streams(operands.device());
    const auto trip = std::make_shared<Trip>(std::move(operands), streams, nullptr, 1);
    message.piece = std::make_shared<Piece>(trip, Surroundings{&group->topology(), group->limits(), rank_, nullptr, {}},
                                            call, nullptr, passages_.clock());
    const collectives::Call& bridge = message.piece->bridge_call();
    message.memory = sends ? bridge.input[0] : bridge.output[0];
    message.work = open_->new_work(about, trip, {tensor}, {tensor});
  }
  regions_.note(message.work);
  message.work->expect_parts(1);
  return message;
}

WorkPtr BackendAtoll::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only("send", "tensor", tensors);
  check_rank("send", "destination", destination, size_);
  const auto number = checked_tag("send", tag);
  const OpenGroup::Parts open = open_->open_parts();
  const auto group = open.group;
  if (const auto library = pass_through_.for_message(tensor, destination)) {
    PlainTensors plain;
    Tensors list = plain.read(tensors);
    return pass_through_.issue(library, plain, NoOptions{}, [&](c10d::Backend& inner, const auto&) {
      return inner.send(list, place_in_island(group->topology(), destination), tag);
    });
  }
  const Message message = new_message({c10d::OpType::SEND, "atoll:send", c10d::kUnsetTimeout, true}, tensor, true);
  const auto work = message.work;
  const auto timeout = open_->timeout(c10d::kUnsetTimeout);
  const auto send_within = [=, memory = message.memory, type = wire_type(tensor.scalar_type()),
                            piece = message.piece](std::chrono::milliseconds limit) {
    group->send(destination, number, type, {memory.data, memory.bytes}, limit,
                [work, piece](const std::exception_ptr& error) { work->part_done(error); });
  };
  const InOrder::Line line{group.get(), destination, number};
  if (!message.piece && open.process->sends.is_idle(line)) {
    translated([&] { send_within(timeout); });
    return work;
  }
  const Departure departure{group, message.piece, Deadline::after(timeout),
                            "send of " + std::to_string(message.memory.bytes) + " bytes (tag " + std::to_string(tag) +
                                ") to rank " + std::to_string(destination) + " on rank " + std::to_string(rank_)};
  if (message.piece) message.piece->load();
  open.process->sends.post(
      line, [=] { return departure.is_due(); },
      [=] {
        try {
          if (!departure.is_due()) group->abort("a message was on its way from the device when the process left");
          send_within(std::chrono::duration_cast<std::chrono::milliseconds>(departure.deadline.remaining(timeout)));
        } catch (...) {
          work->part_done(std::current_exception());
        }
      });
  return work;
}

WorkPtr BackendAtoll::receive_from(const char* title, c10d::OpType type, Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only("recv", "tensor", tensors);
  const auto number = checked_tag("recv", tag);
  const auto group = this->group();
  if (const auto library = source < 0 ? nullptr : pass_through_.for_message(tensor, source)) {
    PlainTensors plain;
    Tensors list = plain.write(tensors);
    return pass_through_.issue(library, plain, NoOptions{}, [&](c10d::Backend& inner, const auto&) {
      return inner.recv(list, place_in_island(group->topology(), source), tag);
    });
  }
  const Message message = new_message({type, title, c10d::kUnsetTimeout, true}, tensor, false);
  const auto done = [work = message.work, piece = message.piece](std::exception_ptr error, int from) {
    if (!error) work->set_source_rank(from);
    try {
      if (!error && piece) piece->store();
    } catch (...) {
      error = std::current_exception();
    }
    work->part_done(error);
  };
  translated([&] {
    group->receive(source, number, wire_type(tensor.scalar_type()), {message.memory.data, message.memory.bytes},
                   std::nullopt, done);
  });
  return message.work;
}

WorkPtr BackendAtoll::recv(Tensors& tensors, int source, int tag) {
  check_rank("recv", "source", source, size_);
  return receive_from("atoll:recv", c10d::OpType::RECV, tensors, source, tag);
}

WorkPtr BackendAtoll::recvAnysource(Tensors& tensors, int tag) {
  return receive_from("atoll:recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, collectives::kAnySource, tag);
}

}  // namespace atl::pytorch
