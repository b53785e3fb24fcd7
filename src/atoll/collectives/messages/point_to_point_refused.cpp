// SPDX-License-Identifier: Apache-2.0
// Messages of which one end was refused before it started. They keep their place among the other messages of their pair
// and tag.
#include "atoll/collectives/control_message.h"
#include "atoll/collectives/messages/point_to_point.h"

namespace atl::collectives {
namespace {

std::string shortened(const std::string& why) {
  return why.empty() ? "no reason was given" : why.substr(0, kMaxReport);
}

std::string text_of(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), std::min(payload.size(), kMaxReport)};
}

}  // namespace

void PointToPoint::refuse_send(int destination, std::uint64_t tag, const std::string& why) {
  step_outside_lock([&](Ready&) {
    Peer& peer = open(destination);
    Outgoing message{peer.next_id++, tag, DataType::kUInt8, {}, {}, Deadline::never(), [](std::exception_ptr) {}};
    message.refusal = shortened(why);
    peer.outgoing.push_back(std::move(message));
    ++outgoing_count_;
  });
}

void PointToPoint::refuse_receive(int source, std::uint64_t tag, const std::string& why) {
  step_outside_lock([&](Ready& ready) {
    Posted posted{source, tag, DataType::kUInt8, {}, nullptr, Deadline::never(), [](std::exception_ptr, int) {}};
    posted.refusal = shortened(why);
    posted_.push_back(std::move(posted));
    match_newest(ready);
  });
}

// Fails a receive whose sender has refused the call.
void PointToPoint::fail_withdrawn(Posted& posted, const Unexpected& message, std::span<const std::byte> payload,
                                  Ready& ready) const {
  const auto error = std::make_exception_ptr(Error(
      ErrorKind::kMismatch, "receive of " + std::to_string(posted.data.size()) + " bytes (tag " +
                                std::to_string(posted.tag) + ") on rank " + std::to_string(ports_.rank()) + ": rank " +
                                std::to_string(message.source) + " refused to send it: " + text_of(payload)));
  ready.emplace_back([done = std::move(posted.done), error, source = message.source] { done(error, source); });
}

// Fails a send whose receiver has refused the call.
void PointToPoint::accept_turned_down(int rank, Peer& peer, const transport::Frame& frame, Ready& ready) {
  for (auto it = peer.outgoing.begin(); it != peer.outgoing.end(); ++it) {
    if (it->id != frame.header.tag || !it->announced || it->granted) continue;
    const auto error = std::make_exception_ptr(Error(
        ErrorKind::kMismatch, "send of " + std::to_string(it->data.size()) + " bytes (tag " + std::to_string(it->tag) +
                                  ") on rank " + std::to_string(ports_.rank()) + ": rank " + std::to_string(rank) +
                                  " refused to receive it: " + text_of(frame.payload)));
    ready.emplace_back([done = std::move(it->done), error] { done(error); });
    peer.outgoing.erase(it);
    --outgoing_count_;
    --peer.announced_in_flight;
    return;
  }
  broken_by(rank, "turned down a message that was not announced");
}

}  // namespace atl::collectives
