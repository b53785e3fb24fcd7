// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/point_to_point.h"

#include <pthread.h>

#include <algorithm>

#include "atoll/core/copy.h"

namespace atl::collectives {
namespace {

constexpr std::uint64_t kEagerBytes = std::uint64_t{16} << 10;    // larger messages are announced
constexpr std::uint64_t kEagerBudget = std::uint64_t{256} << 10;  // unreceived eager bytes per pair and direction
constexpr std::uint64_t kFrameCost = 64;                          // an empty message occupies the budget too
constexpr std::uint64_t kAnnouncedBudget = 1024;                  // announced and not granted, per pair and direction
constexpr std::chrono::milliseconds kLongestSleep{100};
constexpr std::chrono::milliseconds kAskAfter{200};
constexpr std::chrono::milliseconds kAskAgain{1000};

std::uint64_t eager_cost(std::uint64_t bytes) { return bytes + kFrameCost; }

}  // namespace

PointToPoint::PointToPoint(PeerPorts& ports, const Failure& failure, std::uint32_t attempt, bool check_data,
                           std::chrono::nanoseconds spin, std::function<void(const Error&)> fail,
                           std::function<void(int)> ask)
    : ports_(ports),
      failure_(failure),
      attempt_(attempt),
      check_data_(check_data),
      spin_(spin),
      fail_(std::move(fail)),
      ask_(std::move(ask)),
      peers_(static_cast<std::size_t>(ports.size())) {}

PointToPoint::~PointToPoint() {
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
    break_off();
  }
  changed_.notify_all();
  for (const auto& complete : ready) complete();
}

void PointToPoint::send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data,
                        Deadline deadline, Completion done) {
  auto shared = std::make_shared<Completion>(std::move(done));
  bool queued = false;
  step_outside_lock([&](Ready&) {
    Peer& peer = peers_[static_cast<std::size_t>(destination)];
    const auto id = peer.next_id++;
    peer.outgoing.push_back({id, tag, dtype, data, deadline, [shared](std::exception_ptr e) { (*shared)(e); }});
    ++outgoing_count_;
    queued = true;
    open(destination);
  });
  if (!queued) (*shared)(name_operation(failure_.get(), "send to rank " + std::to_string(destination)));
}

void PointToPoint::receive(int source, std::uint64_t tag, DataType dtype, std::span<std::byte> data, Deadline deadline,
                           ReceiveCompletion done) {
  auto shared = std::make_shared<ReceiveCompletion>(std::move(done));
  bool queued = false;
  step_outside_lock([&](Ready& ready) {
    posted_.push_back(
        {source, tag, dtype, data, deadline, [shared](std::exception_ptr e, int from) { (*shared)(e, from); }});
    queued = true;
    bool finished = false;
    Posted& posted = posted_.back();
    if (match_unexpected(posted, ready, &finished)) {
      if (!finished) arriving_.splice(arriving_.end(), posted_, std::prev(posted_.end()));
      if (finished) posted_.pop_back();
    }
    for (int rank = 0; rank < ports_.size(); ++rank) {
      if (rank != ports_.rank() && (source == kAnySource || source == rank)) open(rank);
    }
  });
  if (!queued) (*shared)(name_operation(failure_.get(), "receive"), -1);
}

bool PointToPoint::pending() const {
  return outgoing_count_ > 0 || owes_control_ || !posted_.empty() || !arriving_.empty();
}

bool PointToPoint::progress(Ready& ready) {
  bool moved = false;
  owes_control_ = false;
  for (int rank = 0; rank < ports_.size(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.channel || peer.ended) continue;
    moved |= exchange(rank, peer, ready);
    owes_control_ |= peer.consumed > 0 || !peer.grants.empty();
  }
  return moved;
}

// A peer whose link is gone may have left in good order, which matters to nobody who has all of its messages. The group
// learns from the endpoint which of the two it was: mark_left or fail_pending follows.
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
  return true;
}

bool PointToPoint::push_control(Peer& peer) {
  bool moved = false;
  while (!peer.grants.empty() && peer.channel->try_send(header(FrameKind::kGrant, peer.grants.front()), {})) {
    peer.grants.pop_front();
    --peer.announced_held;
    moved = true;
  }
  if (peer.consumed > 0) {
    auto credit = header(FrameKind::kConsumed, 0);
    credit.count = peer.consumed;
    if (peer.channel->try_send(credit, {})) {
      peer.eager_held -= peer.consumed;
      peer.consumed = 0;
      moved = true;
    }
  }
  return moved;
}

// The first frame of a message: the whole of it, or its announcement.
bool PointToPoint::start(Peer& peer, Outgoing& message, bool* finished) {
  const bool fits =
      message.data.size() <= kEagerBytes && peer.eager_in_flight + eager_cost(message.data.size()) <= kEagerBudget;
  if (!fits && peer.announced_in_flight >= kAnnouncedBudget) return false;
  auto first = header(fits ? FrameKind::kMessage : FrameKind::kAnnounce, message.tag);
  first.dtype = static_cast<std::uint8_t>(message.dtype);
  first.count = message.data.size();
  first.sequence = message.id;
  first.payload_bytes = fits ? static_cast<std::uint32_t>(message.data.size()) : 0;
  if (!send_checked(peer, first, fits ? message.data : std::span<const std::byte>{})) return false;
  if (fits) peer.eager_in_flight += eager_cost(message.data.size());
  if (!fits) ++peer.announced_in_flight;
  message.announced = true;
  *finished = fits;
  return true;
}

bool PointToPoint::stream(Peer& peer, Outgoing& message) {
  bool moved = false;
  while (message.sent < message.data.size()) {
    const auto bytes = std::min<std::uint64_t>(message.data.size() - message.sent, peer.channel->max_payload());
    auto part = header(FrameKind::kPayload, message.id);
    part.offset = message.sent;
    part.payload_bytes = static_cast<std::uint32_t>(bytes);
    if (!send_checked(peer, part, message.data.subspan(message.sent, bytes))) break;
    message.sent += bytes;
    moved = true;
  }
  return moved;
}

bool PointToPoint::push(Peer& peer, Ready& ready) {
  bool moved = push_control(peer);
  for (auto it = peer.outgoing.begin(); it != peer.outgoing.end();) {
    bool finished = false;
    if (!it->announced) {
      if (!start(peer, *it, &finished)) break;  // later messages must not overtake this one
      moved = true;
    } else if (it->granted) {
      moved |= stream(peer, *it);
      finished = it->sent == it->data.size();
    }
    if (!finished) {
      ++it;
      continue;
    }
    ready.push_back([done = std::move(it->done)] { done(nullptr); });
    it = peer.outgoing.erase(it);
    --outgoing_count_;
  }
  return moved;
}

bool PointToPoint::pull(int rank, Peer& peer, Ready& ready) {
  bool moved = false;
  while (const transport::Frame* frame = peer.channel->front()) {
    const auto& head = frame->header;
    check_payload(rank, *frame);
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage: accept_start(rank, peer, *frame, false, ready); break;
      case FrameKind::kAnnounce: accept_start(rank, peer, *frame, true, ready); break;
      case FrameKind::kPayload: accept_payload(rank, *frame, ready); break;
      case FrameKind::kConsumed: peer.eager_in_flight -= std::min(peer.eager_in_flight, head.count); break;
      case FrameKind::kGrant:
        for (Outgoing& message : peer.outgoing) {
          if (message.id != head.tag || !message.announced || message.granted) continue;
          message.granted = true;
          --peer.announced_in_flight;
        }
        break;
      default:
        throw Error(ErrorKind::kProtocol,
                    "rank " + std::to_string(rank) + " sent a frame of unknown kind on the message channel");
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

void PointToPoint::bind(Posted& posted, int source, std::uint64_t id, Peer& peer) {
  posted.from = source;
  posted.message_id = id;
  peer.grants.push_back(id);
}

// A message is as long as it says, and what a peer may send unasked is bounded.
void PointToPoint::admit(int rank, Peer& peer, const transport::Frame& frame, bool announced) {
  const std::uint64_t expected = announced ? 0 : frame.header.count;
  if (frame.payload.size() != expected) {
    throw Error(ErrorKind::kProtocol, "rank " + std::to_string(rank) + " sent a message of " +
                                          std::to_string(frame.header.count) + " bytes with a payload of " +
                                          std::to_string(frame.payload.size()));
  }
  if (announced) ++peer.announced_held;
  if (!announced) peer.eager_held += eager_cost(expected);
  if (peer.announced_held > kAnnouncedBudget || peer.eager_held > kEagerBudget) {
    throw Error(ErrorKind::kProtocol,
                "rank " + std::to_string(rank) + " sent more messages than it may before they are received");
  }
}

void PointToPoint::accept_start(int rank, Peer& peer, const transport::Frame& frame, bool announced, Ready& ready) {
  admit(rank, peer, frame, announced);
  const auto& head = frame.header;
  const auto dtype = static_cast<DataType>(head.dtype);
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    if ((it->source != kAnySource && it->source != rank) || it->tag != head.tag) continue;
    check_size(*it, rank, head.count, dtype);
    if (announced && head.count > 0) {
      bind(*it, rank, head.sequence, peer);
      arriving_.splice(arriving_.end(), posted_, it);
      return;
    }
    if (announced) peer.grants.push_back(head.sequence);  // an empty message: the grant ends it
    if (!announced) peer.consumed += eager_cost(head.count);
    std::copy(frame.payload.begin(), frame.payload.end(), it->data.begin());
    ready.push_back([done = std::move(it->done), rank] { done(nullptr, rank); });
    posted_.erase(it);
    return;
  }
  Unexpected message{rank, head.tag, dtype, head.count, announced, head.sequence, {}};
  if (!announced) message.payload.assign(frame.payload.begin(), frame.payload.end());
  unexpected_.push_back(std::move(message));
}

void PointToPoint::accept_payload(int rank, const transport::Frame& frame, Ready& ready) {
  const auto& head = frame.header;
  for (auto it = arriving_.begin(); it != arriving_.end(); ++it) {
    if (it->from != rank || it->message_id != head.tag) continue;
    if (head.offset != it->received || frame.payload.size() > it->data.size() - it->received) {
      throw Error(ErrorKind::kProtocol,
                  "rank " + std::to_string(rank) + " sent a part of a message that does not fit it");
    }
    copy_bytes(it->data.data() + it->received, frame.payload.data(), frame.payload.size());
    it->received += frame.payload.size();
    if (it->received < it->data.size()) return;
    ready.push_back([done = std::move(it->done), rank] { done(nullptr, rank); });
    arriving_.erase(it);
    return;
  }
  throw Error(ErrorKind::kProtocol, "rank " + std::to_string(rank) + " sent a part of a message that was not granted");
}

// A message that arrived before its receive was posted; true when found, `finished` when it is complete already.
bool PointToPoint::match_unexpected(Posted& posted, Ready& ready, bool* finished) {
  for (auto it = unexpected_.begin(); it != unexpected_.end(); ++it) {
    if ((posted.source != kAnySource && posted.source != it->source) || posted.tag != it->tag) continue;
    check_size(posted, it->source, it->bytes, it->dtype);
    Peer& peer = peers_[static_cast<std::size_t>(it->source)];
    if (it->announced && it->bytes > 0) {
      bind(posted, it->source, it->id, peer);
    } else {
      if (it->announced) peer.grants.push_back(it->id);
      if (!it->announced) peer.consumed += eager_cost(it->bytes);
      std::copy(it->payload.begin(), it->payload.end(), posted.data.begin());
      ready.push_back([done = std::move(posted.done), source = it->source] { done(nullptr, source); });
      *finished = true;
    }
    unexpected_.erase(it);
    return true;
  }
  return false;
}

// Moves messages while some are pending and no caller does.
void PointToPoint::work() {
  pthread_setname_np(pthread_self(), "atoll-messages");
  transport::Sleeper sleeper(ports_.endpoint().doorbell().bell(transport::Bell::kPointToPoint), spin_);
  auto ask_at = Clock::now() + kAskAfter;
  for (;;) {
    Ready ready;
    std::vector<int> to_ask;
    bool moved = false;
    try {
      std::unique_lock lock(mutex_);
      if (!pending()) {
        sleeper.reset();
        changed_.wait(lock, [&] { return stopping_ || pending(); });
        ask_at = Clock::now() + kAskAfter;
      }
      if (stopping_) return;
      failure_.throw_if_set();
      moved = progress(ready);
      if (!moved) {
        moved = fail_left(ready);
        check_deadlines();
        if (Clock::now() >= ask_at) to_ask = awaited();
      }
    } catch (const std::exception&) {
      break_off();
    }
    if (!ready.empty()) changed_.notify_all();
    for (const auto& complete : ready) complete();
    for (const int peer : to_ask) ask_(peer);
    if (!to_ask.empty()) ask_at = Clock::now() + kAskAgain;
    if (moved) {
      sleeper.reset();
      ask_at = Clock::now() + kAskAfter;
    } else {
      sleeper.wait_briefly(kLongestSleep);
    }
  }
}

}  // namespace atl::collectives
