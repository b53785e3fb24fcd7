// SPDX-License-Identifier: Apache-2.0
// Messages that cannot complete, and those of which one end was refused before it started. The latter keep their place
// among the other messages of their pair and tag.
#include "atoll/collectives/checksum.h"
#include "atoll/collectives/control_message.h"
#include "atoll/collectives/messages/point_to_point.h"

namespace atl::collectives {
namespace {

bool has_frame(transport::Channel& channel) {
  try {
    return channel.front() != nullptr;
  } catch (const Error&) {
    return false;  // its link has ended, and all that had arrived was taken
  }
}

std::string shortened(const std::string& why) {
  return why.empty() ? "no reason was given" : why.substr(0, kMaxReport);
}

std::string text_of(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), std::min(payload.size(), kMaxReport)};
}

}  // namespace

// Returns the group's error, prefixed with the failed operation unless the error names a message already.
std::exception_ptr PointToPoint::name_operation(const std::exception_ptr& error, const std::string& operation) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& first) {
    const std::string text = first.what();
    const bool named = text.find("send of ") != std::string::npos || text.find("receive of ") != std::string::npos;
    return named ? error : std::make_exception_ptr(Error(first.kind(), operation + ": " + text));
  }
}

void PointToPoint::check_payload(int rank, const transport::Frame& frame) const {
  if (!check_data_ || frame.payload.empty() || checksum_of(frame.payload) == frame.header.checksum) return;
  const std::uint64_t begin = frame.header.offset;
  throw Error(ErrorKind::kProtocol, "bytes " + std::to_string(begin) + " to " +
                                        std::to_string(begin + frame.payload.size() - 1) + " of a message from rank " +
                                        std::to_string(rank) + " to rank " + std::to_string(ports_.rank()) +
                                        " were changed on the way (ATOLL_CHECK_DATA)");
}

void PointToPoint::check_deadlines() {
  const auto now = Clock::now();
  const auto late = [&](const Deadline& deadline) { return now >= deadline.when(); };
  const auto me = " on rank " + std::to_string(ports_.rank()) + " timed out: ";
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    for (const Outgoing& message : peers_[rank].outgoing) {
      if (!late(message.deadline)) continue;
      throw Error(ErrorKind::kTimeout,
                  "send of " + std::to_string(message.data.size()) + " bytes (tag " + std::to_string(message.tag) +
                      ")" + me + "rank " + std::to_string(rank) +
                      (message.granted ? " has not taken the data" : " has not posted the receive") +
                      ports_.missing_link(static_cast<int>(rank)));
    }
  }
  const auto check = [&](const std::list<Posted>& receives, const char* what) {
    for (const Posted& posted : receives) {
      if (!late(posted.deadline)) continue;
      const int from = posted.awaited_rank();
      throw Error(ErrorKind::kTimeout,
                  "receive of " + std::to_string(posted.data.size()) + " bytes (tag " + std::to_string(posted.tag) +
                      ")" + me + (from == kAnySource ? std::string("no rank") : "rank " + std::to_string(from)) + what +
                      (from == kAnySource ? "" : ports_.missing_link(from)));
    }
  };
  check(posted_, " has not sent it");
  check(arriving_, " has stopped sending it");
}

// Returns "send to rank 2 on rank 0".
std::string PointToPoint::name_of(bool sends, int rank) const {
  return std::string(sends ? "send to " : "receive from ") +
         (rank == kAnySource ? "any rank" : "rank " + std::to_string(rank)) + " on rank " +
         std::to_string(ports_.rank());
}

void PointToPoint::broken_by(int rank, const std::string& how) {
  throw Error(ErrorKind::kProtocol, "rank " + std::to_string(rank) + " " + how);
}

// Ends the messages to or from each rank for which `error_of` returns an error.
void PointToPoint::end_messages(const std::function<std::exception_ptr(bool sends, int rank)>& error_of, Ready& ready) {
  for (int rank = 0; rank < ports_.size(); ++rank) {
    auto& outgoing = peers_[static_cast<std::size_t>(rank)].outgoing;
    const auto error = outgoing.empty() ? nullptr : error_of(true, rank);
    if (!error) continue;
    for (Outgoing& message : outgoing) {
      finish(
          message.transfer, [done = std::move(message.done), error] { done(error); }, ready);
    }
    outgoing_count_ -= outgoing.size();
    outgoing.clear();
  }
  for (auto* receives : {&posted_, &arriving_}) {
    for (auto it = receives->begin(); it != receives->end();) {
      const auto error = error_of(false, it->awaited_rank());
      if (error) {
        finish(
            it->transfer, [done = std::move(it->done), error] { done(error, -1); }, ready);
      }
      it = error ? receives->erase(it) : std::next(it);
    }
  }
}

// Fails messages whose peers have all left the group, since they can never complete. Only these messages fail: the
// group is intact.
bool PointToPoint::fail_left(Ready& ready) {
  const std::size_t before = ready.size();
  const auto error_of = [this](bool sends, int rank) -> std::exception_ptr {
    if (rank == kAnySource ? !all_gone() : !gone(rank)) return nullptr;
    const std::string who = rank == kAnySource ? "all other ranks have" : "rank " + std::to_string(rank) + " has";
    return std::make_exception_ptr(Error(ErrorKind::kPeerLost, name_of(sends, rank) + ": " + who + " left the group"));
  };
  end_messages(error_of, ready);
  return ready.size() > before;
}

// Everything that a peer sent before it left is in the channel by the time the mark is seen, or was taken already.
bool PointToPoint::gone(int rank) {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return peer.left && (!peer.channel || peer.ended || !has_frame(*peer.channel));
}

bool PointToPoint::all_gone() {
  for (int rank = 0; rank < ports_.size(); ++rank) {
    if (rank != ports_.rank() && !gone(rank)) return false;
  }
  return true;
}

// Returns the ranks that pending messages go to or come from. Called under the lock.
std::vector<int> PointToPoint::awaited() const {
  std::vector<bool> waits(peers_.size());
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) waits[rank] = !peers_[rank].outgoing.empty();
  for (const auto* receives : {&posted_, &arriving_}) {
    for (const Posted& posted : *receives) {
      const int source = posted.awaited_rank();
      if (!posted.refusal.empty()) continue;
      if (source == kAnySource) waits.assign(waits.size(), true);
      if (source != kAnySource) waits[static_cast<std::size_t>(source)] = true;
    }
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < ports_.size(); ++rank) {
    if (rank != ports_.rank() && waits[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void PointToPoint::mark_left(int rank) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(rank)].left = true;
}

// Ends the group with the exception that is being handled, and fails everything pending.
void PointToPoint::fail_group() {
  try {
    throw;
  } catch (const Error& error) {
    fail_(error);
  } catch (const std::exception& broken) {  // no thread or no memory
    fail_(Error(ErrorKind::kUnavailable,
                "messages on rank " + std::to_string(ports_.rank()) + " cannot continue: " + broken.what()));
  }
  fail_pending();
}

void PointToPoint::fail_pending() {
  Ready ready;
  {
    const std::lock_guard lock(mutex_);
    const auto error_of = [&, error = failure_.get()](bool sends, int rank) {
      return name_operation(error, name_of(sends, rank));
    };
    end_messages(error_of, ready);
    for (Peer& peer : peers_) peer.not_landed = 0;
    not_landed_ = 0;
  }
  changed_.notify_all();
  for (const auto& complete : ready) complete();
  try {
    failure_.throw_if_set();
  } catch (const Error& error) {
    direct_.abandon(error);
  }
}

void PointToPoint::drain(Deadline deadline) {
  std::unique_lock lock(mutex_);
  // A receive whose message has not started to arrive is not waited for.
  const auto unfinished = [&] { return outgoing_count_ > 0 || not_landed_ > 0 || owes_control_ || !arriving_.empty(); };
  while (unfinished() && !deadline.expired())
    changed_.wait_for(lock, deadline.remaining(std::chrono::milliseconds(100)));
}

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
