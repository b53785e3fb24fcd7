// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/schedule/executor.h"
#include "atoll/core/bytes.h"
#include "tests/collectives/schedule/cases.h"
#include "tests/fuzz/channel_pair.h"

namespace atl::fuzz {

/// One group of two ranks, in which rank 0 calls collectives. Before each call, rank 1 sends the frames that belong to
/// it, changed as the input says, and leaves: so no call waits.
class CollectiveGroup {
 public:
  CollectiveGroup(bool one_island, bool check_data)
      : topology_(collectives::Topology::from_labels({"A", one_island ? "A" : "B"})),
        ports_(pair_.honest, ++pair_.groups, pair_.members(), 0),
        executor_(ports_, topology_, failure_, refusals_, std::chrono::nanoseconds(0), threads_, quiet_, check_data) {
    for (const auto flow : kFlows) {
      auto& mine = ports_.open(1, static_cast<collectives::Port>(flow));
      ChannelPair::send_first(theirs(flow), {});
      while (!mine.front()) std::this_thread::yield();
      mine.pop();
    }
    executor_.mark_left(1);
  }

  ~CollectiveGroup() {
    for (const auto flow : kFlows) pair_.link().close_channel(id(flow));
  }

  /// Makes one call on rank 0, whose peer makes the same call and changes frames. Throws what the call throws.
  void call(ByteReader& reader) {
    using namespace collectives;  // NOLINT
    const auto operation = test::kOperations[reader.integer<std::uint8_t>() % std::size(test::kOperations)];
    const auto dtype = static_cast<DataType>(reader.integer<std::uint8_t>() % kDataTypeCount);
    const auto wanted = static_cast<ReduceOp>(reader.integer<std::uint8_t>() % kReduceOpCount);
    const std::uint64_t count = reader.integer<std::uint16_t>() % 2048;
    const auto shapes = test::make_shapes(topology_, operation, dtype, count, static_cast<int>(count % 2), false);
    Call call;
    call.operation = operation;
    call.dtype = shapes[0].dtype;
    call.reduce_op = is_supported(wanted, call.dtype) ? wanted : ReduceOp::kMax;
    if (!is_supported(call.reduce_op, call.dtype)) call.reduce_op = ReduceOp::kSum;
    call.root = shapes[0].root;
    const ScheduleLimits limits{theirs(Flow::kUp).max_payload(), std::uint64_t{64} << 10};
    const Signature signature{operation, call.dtype, call.reduce_op, call.root, sequence_of(++number_, 0), 0};
    send(build_schedule(topology_, shapes[1], 1, limits), signature, reader);
    const std::uint64_t elements = operation == Operation::kBarrier ? 1 : count;
    give_memory(call, shapes[0], elements * size_of(call.dtype));
    executor_.run(build_schedule(topology_, shapes[0], 0, limits), call, signature,
                  Deadline::after(std::chrono::minutes(5)));
    for (const auto flow : kFlows) {
      while (theirs(flow).front() != nullptr) theirs(flow).pop();
    }
  }

 private:
  static constexpr std::array kFlows{collectives::Flow::kUp, collectives::Flow::kDown};

  struct Quiet : collectives::StallObserver {
    void on_stall(const collectives::Stall&) override {}
    void on_stall_over(const collectives::Stall&) override {}
    void on_peer_ahead(int) override {}
    std::string explain(const collectives::Stall&) override { return ""; }
  };

  transport::ChannelId id(collectives::Flow flow) const {
    return {ports_.group_id(), static_cast<std::uint32_t>(flow), transport::Bell::kCollective};
  }
  transport::Channel& theirs(collectives::Flow flow) { return pair_.link().channel(id(flow)); }

  /// Provides as many segments as schedule.h says, each of its exact size, so that a byte too many is found.
  void give_memory(collectives::Call& call, const collectives::Shape& shape, std::uint64_t bytes) {
    using Operation = collectives::Operation;
    memory_.clear();
    const auto segments = [&](std::size_t number) {
      std::vector<collectives::Segment> all(number);
      for (auto& each : all) {
        auto& memory = memory_.emplace_back(bytes);
        each = {memory.data(), bytes};
      }
      return all;
    };
    const bool is_root = shape.root == 0;
    const auto operation = shape.operation;
    const bool scatters = operation == Operation::kReduceScatter || operation == Operation::kAllToAll ||
                          (operation == Operation::kScatter && is_root);
    const bool gathers = operation == Operation::kAllGather || operation == Operation::kAllToAll ||
                         (operation == Operation::kGather && is_root);
    const bool takes_nothing = operation == Operation::kScatter && !is_root;
    const bool gets_nothing = (operation == Operation::kGather || operation == Operation::kReduce) && !is_root;
    call.input = segments(takes_nothing ? 0 : scatters ? 2 : 1);
    call.output = operation == Operation::kBroadcast ? call.input : segments(gets_nothing ? 0 : gathers ? 2 : 1);
  }

  /// Sends what rank 1 would send, with each frame unchanged or changed in one field.
  void send(const collectives::Schedule& schedule, const collectives::Signature& mine, ByteReader& reader) {
    for (const auto& step : schedule.steps) {
      if (step.kind != collectives::StepKind::kSend) continue;
      transport::FrameHeader header;
      header.kind = static_cast<std::uint8_t>(collectives::FrameKind::kCollective);
      header.operation = static_cast<std::uint8_t>(mine.operation);
      header.dtype = static_cast<std::uint8_t>(mine.dtype);
      header.reduce_op = static_cast<std::uint8_t>(mine.reduce_op);
      header.root = mine.root;
      header.sequence = mine.sequence;
      header.count = step.count;
      header.offset = step.position;
      header.payload_bytes = static_cast<std::uint32_t>(step.range.bytes);
      change(header, step.flow, reader);
    }
  }

  void change(transport::FrameHeader header, collectives::Flow flow, ByteReader& reader) {
    const auto what = reader.left() == 0 ? std::uint8_t{255} : reader.integer<std::uint8_t>();
    if (what < 10 && reader.left() < sizeof(std::uint64_t)) return;
    const auto value = what < 10 ? reader.integer<std::uint64_t>() : 0;
    switch (what) {
      case 0: return;  // is not sent
      case 1: header.kind = static_cast<std::uint8_t>(value); break;
      case 2: header.operation = static_cast<std::uint8_t>(value); break;
      case 3: header.dtype = static_cast<std::uint8_t>(value); break;
      case 4: header.reduce_op = static_cast<std::uint8_t>(value); break;
      case 5: header.root = static_cast<std::int32_t>(value); break;
      case 6: header.sequence = value; break;
      case 7: header.count = value; break;
      case 8: header.offset = value; break;
      case 9: header.payload_bytes = static_cast<std::uint32_t>(value); break;
      case 10: header.tag = 1; break;
      case 11: header.checksum = 1; break;
      case 12: flow = flow == collectives::Flow::kUp ? collectives::Flow::kDown : collectives::Flow::kUp; break;
      case 13: put(header, flow); break;  // is sent twice
      default: break;
    }
    put(header, flow);
  }

  void put(transport::FrameHeader header, collectives::Flow flow) {
    auto& channel = theirs(flow);
    const std::vector<std::byte> payload(std::min<std::size_t>(header.payload_bytes, channel.max_payload()),
                                         std::byte{1});
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    if (header.checksum == 0) header.checksum = collectives::checksum_of(payload);
    channel.try_send(header, payload);
  }

  ChannelPair& pair_ = ChannelPair::get();
  Quiet quiet_;
  const collectives::Topology topology_;
  collectives::Failure failure_;
  collectives::Refusals refusals_;
  collectives::FoldThreads threads_{1};
  collectives::PeerPorts ports_;
  collectives::Executor executor_;
  std::uint64_t number_ = 0;
  std::deque<std::vector<std::byte>> memory_;
};

/// Handles generated frames of collectives from a peer: calls succeed, or fail with an error that names the peer.
/// Returns how many succeeded.
inline int collective_frames(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > 512) return 0;
  ByteReader reader(bytes, "an input");
  const auto how = reader.integer<std::uint8_t>();
  int ended_well = 0;
  CollectiveGroup group((how & 1U) != 0, (how & 2U) != 0);
  try {
    for (; reader.left() >= 5; ++ended_well) group.call(reader);
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool is_schedule = text.find("the ranks built different schedules") != std::string::npos;
    const bool is_result = text.find("the results of ") != std::string::npos;
    const bool is_internal = error.kind() == ErrorKind::kInternal && !is_schedule && !is_result;
    if (is_internal || error.kind() == ErrorKind::kTimeout || text.find("rank 1") == std::string::npos) std::abort();
  }
  return ended_well;
}

}  // namespace atl::fuzz
