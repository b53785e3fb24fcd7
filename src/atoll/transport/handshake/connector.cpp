// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/connector.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr const char* kWayOut =
    " (a firewall in between? open the ports that ATOLL_PORTS names; an address of another network? ATOLL_IFACE or "
    "ATOLL_ADDRESS on that rank chooses the right one)";
constexpr milliseconds kRetryPause{50};
constexpr milliseconds kNotListeningPatience{900};  // with the last attempt still within one second
constexpr milliseconds kMinAttempt{1000};
constexpr milliseconds kMinSilence{250};
constexpr milliseconds kMaxAttempt{3000};  // a restored path is found by the next attempt

bool is_not_listening(int error) { return error == ECONNREFUSED || error == ECONNRESET || error == EPIPE; }

}  // namespace

Connector::Connector(Loop& loop, Owner& owner, const EndpointOptions& options, PeerAddress peer, LinkKind kind,
                     MakeHandshake make_handshake)
    : loop_(loop),
      owner_(owner),
      options_(options),
      peer_(std::move(peer)),
      kind_(kind),
      make_handshake_(std::move(make_handshake)) {
  collect_targets();
}

Connector::~Connector() {
  if (retry_) loop_.cancel_timer_on_loop(*retry_);
}

void Connector::collect_targets() {
  if (kind_ == LinkKind::kShm) {
    targets_.push_back({abstract_unix_address(peer_.unix_name), "Unix socket @" + peer_.unix_name});
    return;
  }
  for (const auto& text : peer_.tcp) {
    if (const auto address = parse_tcp_address(text)) targets_.push_back({*address, text});
  }
}

std::string Connector::describe() const {
  std::string where;
  for (const auto& target : targets_) where += (where.empty() ? "" : ", ") + target.text;
  const std::string who = peer_.name.empty() ? "peer " + to_string(peer_.id).substr(0, 8) : peer_.name;
  return "cannot connect to " + who + " (" + (where.empty() ? "it has no usable address" : where) + ")";
}

bool Connector::may_be_accepted() const noexcept {
  return stream_ && stream_->state() == Handshake::State::kAwaitWelcome;
}

void Connector::try_targets() {
  while (next_target_ < targets_.size()) {
    if (try_one(targets_[next_target_++])) return;
    if (outcome_ == Outcome::kStranger && worst_->kind() == ErrorKind::kUnavailable) return fail(Error(*worst_));
  }
  end_round();
}

bool Connector::try_one(const Target& target) {
  Fd fd = open_socket(target.address.family());
  if (!fd) {
    const int error = errno;
    const bool no_family = error == EAFNOSUPPORT;  // an IPv6 address on a machine without IPv6
    note(no_family ? Outcome::kNoRoute : Outcome::kStranger, unavailable("no socket for " + target.text, error));
    return false;
  }
  const int error = start_connecting(fd.get(), target.address);
  if (error != 0 && error != EINPROGRESS) {
    // EAGAIN means that a Unix listener's backlog is full: it will be served.
    const auto outcome = error == EAGAIN           ? Outcome::kNoAnswer
                         : is_not_listening(error) ? Outcome::kNotListening
                                                   : Outcome::kNoRoute;
    note(outcome, Error(ErrorKind::kPeerLost, with_errno(target.text, error)));
    return false;
  }
  stream_ = std::make_unique<HandshakeStream>(loop_, static_cast<HandshakeStream::Owner&>(*this), std::move(fd),
                                              target.text, kind_);
  heard_bytes_ = 0;
  stream_silence_ = Clock::duration::zero();
  try {
    stream_->begin(make_handshake_(peer_.id, kind_), error != 0);
  } catch (const Error& failure) {
    stream_.reset();
    note(Outcome::kStranger, failure);
    return false;
  }
  return true;
}

void Connector::note(Outcome outcome, const Error& error) {
  last_reason_ = error.what();
  if (outcome < outcome_) return;
  outcome_ = outcome;
  worst_ = error;
}

void Connector::on_done(HandshakeStream& stream) {
  const PeerAddress authenticated = stream.peer();
  owner_.on_connected(peer_.id, stream.take_stream(), authenticated);
}

void Connector::on_ended(HandshakeStream&, const HandshakeStream::End& end) {
  const auto finished = std::move(stream_);
  if (end.refusal == Refusal::kYield) return owner_.on_yielded(peer_.id);
  if (end.refusal == Refusal::kPeer || end.refusal == Refusal::kGone) {
    note(Outcome::kNotListening, Error(ErrorKind::kPeerLost, end.error.what()));
  } else if (end.error.kind() == ErrorKind::kRefused || end.error.kind() == ErrorKind::kProtocol) {
    note(Outcome::kStranger, end.error);
  } else if (end.end_of_file || is_not_listening(end.error_number)) {
    note(Outcome::kNotListening, end.error);
  } else {
    note(end.error_number == ETIMEDOUT ? Outcome::kNoAnswer : Outcome::kNoRoute, end.error);
  }
  if (owner_.on_attempt_failed(peer_.id)) try_targets();
}

void Connector::end_round() {
  const auto now = Clock::now();
  if (targets_.empty()) return fail(Error(ErrorKind::kPeerLost, describe()));
  if (outcome_ == Outcome::kStranger) return fail(Error(worst_->kind(), describe() + ": " + worst_->what()));
  if (outcome_ == Outcome::kNotListening) {
    if (!first_not_listening_) first_not_listening_ = now;
    if (kind_ == LinkKind::kShm || now - *first_not_listening_ >= kNotListeningPatience) {
      const std::string ended = ": it has ended (its own output says why) or never listened there: ";
      return fail(Error(ErrorKind::kPeerLost, describe() + ended + worst_->what()));
    }
  }
  outcome_ = Outcome::kNothing;
  next_target_ = 0;
  retry_ = loop_.add_timer_on_loop(kRetryPause, false, [this] {
    retry_.reset();
    try_targets();
  });
}

void Connector::tick(Clock::time_point now) {
  note_silence(now);
  // A little before the link's own limit, because this message can name the reason.
  const auto limit = options_.connect_timeout - std::min(options_.connect_timeout / 4, 2 * tick_interval(options_));
  if (now - started_ >= limit) {
    const std::string reason = stream_ ? stream_->remote() + " does not answer" : last_reason_;
    const bool took_nothing = kind_ == LinkKind::kTcp && (!stream_ || stream_->is_connecting());
    return fail(Error(ErrorKind::kPeerLost, describe() + " within " + std::to_string(options_.connect_timeout.count()) +
                                                " ms: " + reason + (took_nothing ? kWayOut : "")));
  }
  if (!stream_) return;
  const auto patience = answer_patience(options_);
  if (silence_ >= patience && next_target_ == targets_.size()) return give_up_attempt(true);
  // Connecting to an address may take long, but a process that accepted the connection answers soon or never.
  const auto tries = static_cast<int>(std::max<std::size_t>(targets_.size(), 1));
  const bool slow = now - stream_->since() >= std::max(kMinAttempt, options_.connect_timeout / tries);
  const bool silent = stream_silence_ >= std::max(kMinSilence, patience / tries);
  if (tries > 1 && (slow || silent)) give_up_attempt(false);
}

void Connector::note_silence(Clock::time_point now) {
  const auto passed = counted_time(last_tick_, now, options_);
  if (!stream_ || stream_->is_connecting()) return;
  const std::uint64_t heard = stream_->heard_bytes();
  const bool spoke = heard != std::exchange(heard_bytes_, heard);
  silence_ = spoke ? Clock::duration::zero() : silence_ + passed;
  stream_silence_ = spoke ? Clock::duration::zero() : stream_silence_ + passed;
}

void Connector::give_up_attempt(bool last) {
  const Error error(ErrorKind::kPeerLost, stream_->remote(), " does not answer",
                    last ? ": its process is stopped, or the network in between is cut" : "");
  stream_.reset();
  note(Outcome::kNoAnswer, error);
  if (!owner_.on_attempt_failed(peer_.id)) return;
  if (last) return fail(Error(ErrorKind::kPeerLost, describe() + ": " + error.what()));
  // The next address has time to answer, too.
  silence_ = std::min<Clock::duration>(silence_, answer_patience(options_) - kMinSilence);
  try_targets();
}

void Connector::fail(const Error& error) {
  stream_.reset();
  owner_.on_connect_failed(peer_.id, error);
}

RailConnector::RailConnector(Loop& loop, Owner& owner, const EndpointOptions& options, const PeerAddress& peer,
                             WantedRail wanted)
    : loop_(loop), owner_(owner), options_(options), peer_(peer.id), wanted_(std::move(wanted)) {}

RailConnector::~RailConnector() {
  if (failure_) loop_.cancel_timer_on_loop(*failure_);
}

Fd RailConnector::connect(bool* connecting) const {
  const auto target = parse_tcp_address(wanted_.to);
  if (!target) throw Error(ErrorKind::kPeerLost, "invalid rail address \"" + wanted_.to + "\"");
  Fd fd = open_socket(target->family());
  if (!fd) throw unavailable("no socket for a rail to " + wanted_.to, errno);
  if (auto source = parse_tcp_address(wanted_.from); source && source->family() == target->family()) {
    source->set_port(0);
    // Behind address translation peers see an address that this machine does not have: then the route decides.
    if (::bind(fd.get(), source->get(), source->length) != 0 && errno != EADDRNOTAVAIL) {
      throw Error(ErrorKind::kUnavailable, with_errno("a rail from " + wanted_.from, errno));
    }
  }
  const int error = start_connecting(fd.get(), *target);
  if (error != 0 && error != EINPROGRESS) throw Error(ErrorKind::kPeerLost, with_errno(wanted_.to, error));
  *connecting = error != 0;
  return fd;
}

void RailConnector::begin(const std::function<Handshake()>& make_handshake) {
  try {
    bool connecting = false;
    Fd fd = connect(&connecting);
    stream_ = std::make_unique<HandshakeStream>(loop_, static_cast<HandshakeStream::Owner&>(*this), std::move(fd),
                                                wanted_.to, LinkKind::kTcp);
    stream_->begin(make_handshake(), connecting);
  } catch (const Error& error) {
    stream_.reset();
    failure_ = loop_.add_timer_on_loop(milliseconds(0), false, [this, error] {
      failure_.reset();
      owner_.on_rail_failed(*this, error);
    });
  }
}

void RailConnector::tick(Clock::time_point now) {
  if (!stream_ || now - started_ < std::min(answer_patience(options_), kMaxAttempt)) return;
  stream_.reset();
  owner_.on_rail_failed(*this, Error(ErrorKind::kPeerLost, wanted_.to + " does not answer"));
}

void RailConnector::on_done(HandshakeStream& stream) { owner_.on_rail_connected(*this, stream.take_stream()); }

void RailConnector::on_ended(HandshakeStream&, const HandshakeStream::End& end) {
  const auto finished = std::move(stream_);  // kept alive: it called this function
  owner_.on_rail_failed(*this, end.error);
}

}  // namespace atl::transport
