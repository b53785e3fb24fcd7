// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/rails/rail_connector.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "atoll/transport/address.h"
#include "atoll/transport/socket.h"

namespace atl::transport {

namespace {

constexpr std::chrono::milliseconds kMaxAttempt{3000};  // a restored path is found by the next attempt

}  // namespace

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
    fail_later(error);
  }
}

void RailConnector::fail_later(const Error& error) {
  failure_ = loop_.add_timer_on_loop(std::chrono::milliseconds(0), false, [this, error] {
    failure_.reset();
    owner_.on_rail_failed(*this, error);
  });
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
