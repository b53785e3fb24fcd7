// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/messages/point_to_point.h"

#include <pthread.h>

#include <algorithm>

#include "atoll/core/copy.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::milliseconds kMaxSleep{100};
constexpr std::chrono::milliseconds kQueryAfter{200};
constexpr std::chrono::milliseconds kQueryAgain{1000};

}  // namespace

PointToPoint::PointToPoint(PeerPorts& ports, const Failure& failure, std::uint32_t attempt, bool check_data,
                           std::chrono::nanoseconds spin, std::function<void(const Error&)> fail,
                           std::function<void(int)> query, std::function<void()> prepare_thread)
    : ports_(ports),
      failure_(failure),
      attempt_(attempt),
      check_data_(check_data),
      spin_(spin),
      fail_(std::move(fail)),
      query_(std::move(query)),
      prepare_thread_(std::move(prepare_thread)),
      peers_(static_cast<std::size_t>(ports.size())),
      direct_([this] { ports_.endpoint().doorbell().ring_all(); }) {}

PointToPoint::~PointToPoint() { stop(); }

void PointToPoint::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  ports_.endpoint().doorbell().ring_all();
  if (worker_.joinable()) worker_.join();
}

transport::FrameHeader PointToPoint::header(FrameKind kind, std::uint64_t tag) const {
  transport::FrameHeader header;
  header.kind = static_cast<std::uint8_t>(kind);
  header.operation = static_cast<std::uint8_t>(Operation::kSend);
  header.attempt = attempt_;
  header.root = -1;
  header.tag = tag;
  return header;
}

PointToPoint::Peer& PointToPoint::open(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer.channel) peer.channel = &ports_.open(rank, Port::kMessages);
  return peer;
}

// Runs `action` and one round of progress under the lock, then the completions without it.
void PointToPoint::step_outside_lock(const std::function<void(Ready&)>& action) {
  Ready ready;
  try {
    const std::lock_guard lock(mutex_);
    failure_.throw_if_set();
    action(ready);
    while (progress(ready)) {
    }
    if (pending() && !worker_.joinable()) worker_ = std::thread([this] { work(); });
  } catch (const std::exception&) {
    fail_group();
  }
  changed_.notify_all();
  direct_.start_queued();
  for (const auto& complete : ready) complete();
}

void PointToPoint::send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data,
                        Deadline deadline, Completion done, const MessageOrigin& origin) {
  bool queued = false;
  step_outside_lock([&](Ready&) {
    Peer& peer = peers_[static_cast<std::size_t>(destination)];
    peer.outgoing.push_back({peer.next_id++, tag, dtype, data, origin, deadline, done});
    ++outgoing_count_;
    queued = true;
    open(destination);
  });
  if (!queued) done(name_operation(failure_.get(), "send to rank " + std::to_string(destination)));
}

void PointToPoint::receive(int source, std::uint64_t tag, DataType dtype, std::span<std::byte> data, Deadline deadline,
                           ReceiveCompletion done, std::shared_ptr<Landing> landing) {
  bool queued = false;
  step_outside_lock([&](Ready& ready) {
    posted_.push_back({source, tag, dtype, data, std::move(landing), deadline, done});
    queued = true;
    match_newest(ready);
  });
  if (!queued) done(name_operation(failure_.get(), "receive"), -1);
}

bool PointToPoint::pending() const {
  return outgoing_count_ > 0 || not_landed_ > 0 || owes_control_ || !posted_.empty() || !arriving_.empty();
}

bool PointToPoint::progress(Ready& ready) {
  bool moved = finish_direct(ready);
  owes_control_ = false;
  for (int rank = 0; rank < ports_.size(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.channel || peer.ended) continue;
    moved |= exchange(rank, peer, ready);
    owes_control_ |= peer.consumed > 0 || !peer.grants.empty() || !peer.turned_down.empty() || !peer.landed.empty();
  }
  return moved;
}

// A peer whose link is gone may have left in good order, which does no harm if all its messages have arrived. The group
// learns from the endpoint whether it has: mark_left or fail_pending follows.
bool PointToPoint::exchange(int rank, Peer& peer, Ready& ready) {
  const auto only_if_lost = [](const Error& error) {
    if (error.kind() != ErrorKind::kPeerLost) throw;
  };
  try {
    const bool moved = pull(rank, peer, ready);
    return push(peer, ready) || moved;
  } catch (const Error& error) {
    only_if_lost(error);
  }
  try {
    pull(rank, peer, ready);  // what arrived before the end
  } catch (const Error& error) {
    only_if_lost(error);
  }
  peer.ended = true;
  peer.consumed = 0;
  peer.grants.clear();
  peer.turned_down.clear();
  peer.landed.clear();
  not_landed_ -= std::exchange(peer.not_landed, 0);
  return true;
}

bool PointToPoint::pull(int rank, Peer& peer, Ready& ready) {
  bool moved = false;
  while (const transport::Frame* frame = peer.channel->front()) {
    const auto& head = frame->header;
    if (head.where != transport::Payload::kHere) broken_by(rank, "sent a message without its bytes");
    check_payload(rank, *frame);
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage:
      case FrameKind::kAnnounce:
      case FrameKind::kWithdrawn:
      case FrameKind::kAnnounceDirect: accept_start(rank, peer, *frame, ready); break;
      case FrameKind::kTurnedDown: accept_turned_down(rank, peer, *frame, ready); break;
      case FrameKind::kLanded: accept_landed(rank, peer, head.tag, ready); break;
      case FrameKind::kPayload: accept_payload(rank, *frame, ready); break;
      case FrameKind::kConsumed: peer.eager_in_flight -= std::min(peer.eager_in_flight, head.count); break;
      case FrameKind::kGrant:
        for (Outgoing& message : peer.outgoing) {
          if (message.id != head.tag || !message.announced || message.granted) continue;
          message.granted = true;
          --peer.announced_in_flight;
          if (message.origin.device) start_direct(rank, peer, message);
        }
        break;
      default: broken_by(rank, "sent a frame of unknown kind on the message channel");
    }
    peer.channel->pop();
    moved = true;
  }
  return moved;
}

void PointToPoint::check_size(const Posted& posted, int source, std::uint64_t bytes, DataType dtype) const {
  if (bytes == posted.data.size() && dtype == posted.dtype) return;
  throw Error(ErrorKind::kMismatch, "receive of " + std::to_string(posted.data.size()) + " bytes of " +
                                        to_string(posted.dtype) + " on rank " + std::to_string(ports_.rank()) +
                                        " met a send of " + std::to_string(bytes) + " bytes of " + to_string(dtype) +
                                        " from rank " + std::to_string(source) + " (tag " + std::to_string(posted.tag) +
                                        "): both sides must give the same size and dtype");
}

void PointToPoint::bind(Posted& posted, const Unexpected& message, Peer& peer) {
  posted.from = message.source;
  posted.message_id = message.id;
  if (message.kind == FrameKind::kAnnounceDirect) start_direct(posted);
  if (message.kind == FrameKind::kAnnounce) posted.data = on_host(posted);
  peer.grants.push_back(message.id);
}

// Checks that a message has the stated length, and that the peer keeps within the budget for unrequested messages.
void PointToPoint::admit(int rank, Peer& peer, const transport::Frame& frame) {
  const auto kind = static_cast<FrameKind>(frame.header.kind);
  const bool announced = kind != FrameKind::kMessage && kind != FrameKind::kWithdrawn;
  const std::uint64_t expected = announced ? 0 : frame.header.count;
  if (frame.payload.size() != expected) {
    broken_by(rank, "sent a message of " + std::to_string(frame.header.count) + " bytes with a payload of " +
                        std::to_string(frame.payload.size()));
  }
  if (announced) ++peer.announced_held;
  if (!announced) peer.eager_held += eager_cost(expected);
  if (peer.announced_held > kAnnouncedBudget || peer.eager_held > kEagerBudget)
    broken_by(rank, "sent more messages than it may before they are received");
}

void PointToPoint::accept_start(int rank, Peer& peer, const transport::Frame& frame, Ready& ready) {
  admit(rank, peer, frame);
  const auto& head = frame.header;
  const auto kind = static_cast<FrameKind>(head.kind);
  Unexpected message{rank, head.tag, static_cast<DataType>(head.dtype), head.count, kind, head.sequence, {}};
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    if (it->wants(message)) return match(it, message, frame.payload, ready);
  }
  message.payload.assign(frame.payload.begin(), frame.payload.end());
  unexpected_.push_back(std::move(message));
}

void PointToPoint::match(std::list<Posted>::iterator posted, const Unexpected& message,
                         std::span<const std::byte> payload, Ready& ready) {
  if (take(*posted, message, payload, ready)) {
    posted_.erase(posted);
  } else {
    arriving_.splice(arriving_.end(), posted_, posted);
  }
}

// Matches the receive posted last with a message that arrived before it, if there is one.
void PointToPoint::match_newest(Ready& ready) {
  const auto newest = std::prev(posted_.end());
  const int source = newest->source;
  const auto earlier = std::ranges::find_if(unexpected_, [&](const Unexpected& each) { return newest->wants(each); });
  if (earlier != unexpected_.end()) {
    match(newest, *earlier, earlier->payload, ready);
    unexpected_.erase(earlier);
  }
  for (int rank = 0; rank < ports_.size(); ++rank) {
    if (rank != ports_.rank() && (source == kAnySource || source == rank)) open(rank);
  }
}

// Matches a message with its receive; returns true if that completes it.
bool PointToPoint::take(Posted& posted, const Unexpected& message, std::span<const std::byte> payload, Ready& ready) {
  Peer& peer = peers_[static_cast<std::size_t>(message.source)];
  const bool announced = message.is_announced();
  if (!posted.refusal.empty()) {
    if (announced) peer.turned_down.emplace_back(message.id, posted.refusal);
    if (!announced) peer.consumed += eager_cost(message.bytes);
    return true;
  }
  if (message.kind == FrameKind::kWithdrawn) {
    peer.consumed += eager_cost(message.bytes);
    fail_withdrawn(posted, message, payload, ready);
    return true;
  }
  check_size(posted, message.source, message.bytes, message.dtype);
  if (announced && message.bytes > 0) {
    bind(posted, message, peer);
    return false;
  }
  if (announced) peer.grants.push_back(message.id);  // of an empty message: the grant completes it
  if (!announced) peer.consumed += eager_cost(message.bytes);
  std::copy(payload.begin(), payload.end(), on_host(posted).begin());
  ready.emplace_back([done = std::move(posted.done), source = message.source] { done(nullptr, source); });
  return true;
}

void PointToPoint::accept_payload(int rank, const transport::Frame& frame, Ready& ready) {
  const auto& head = frame.header;
  for (auto it = arriving_.begin(); it != arriving_.end(); ++it) {
    if (it->from != rank || it->message_id != head.tag || it->transfer) continue;
    if (head.offset != it->received || frame.payload.size() > it->data.size() - it->received)
      broken_by(rank, "sent a part of a message that does not fit it");
    copy_bytes(it->data.data() + it->received, frame.payload.data(), frame.payload.size());
    it->received += frame.payload.size();
    if (it->received < it->data.size()) {
      if (it->landing) it->landing->arrived(it->received);
      return;
    }
    ready.emplace_back([done = std::move(it->done), rank] { done(nullptr, rank); });
    arriving_.erase(it);
    return;
  }
  broken_by(rank, "sent a part of a message that was not granted");
}

// Moves messages while some are pending and no caller does.
void PointToPoint::work() {
  pthread_setname_np(pthread_self(), "atoll-messages");
  if (prepare_thread_) prepare_thread_();
  transport::Sleeper sleeper(ports_.endpoint().doorbell().bell(transport::Bell::kPointToPoint), spin_);
  auto query_at = Clock::now() + kQueryAfter;
  for (;;) {
    Ready ready;
    std::vector<int> to_query;
    bool moved = false;
    try {
      std::unique_lock lock(mutex_);
      if (!pending()) {
        sleeper.reset();
        changed_.wait(lock, [&] { return stopping_ || pending(); });
        query_at = Clock::now() + kQueryAfter;
      }
      if (stopping_) return;
      failure_.throw_if_set();
      moved = progress(ready);
      if (!moved) {
        moved = fail_left(ready);
        check_deadlines();
        if (Clock::now() >= query_at) to_query = awaited();
      }
    } catch (const std::exception&) {
      fail_group();
    }
    direct_.start_queued();
    if (moved || !ready.empty()) changed_.notify_all();
    for (const auto& complete : ready) complete();
    for (const int peer : to_query) query_(peer);
    if (!to_query.empty()) query_at = Clock::now() + kQueryAgain;
    if (moved) {
      sleeper.reset();
      query_at = Clock::now() + kQueryAfter;
    } else {
      sleeper.wait_briefly(kMaxSleep);
    }
  }
}

}  // namespace atl::collectives
