// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/loop.h"
#include "atoll/transport/arena.h"
#include "atoll/transport/link.h"

namespace atl::transport {

enum class TransportChoice { kAuto, kShm, kTcp, kUcx };

/// The reach of UCX from one end: nothing, because it is absent or not opened; this host alone; network devices with
/// RDMA too.
enum class UcxReach : std::uint8_t { kNone, kHost, kRdma };

struct EndpointOptions {
  std::string job;             ///< peers of another job are refused
  std::uint32_t attempt = 0;   ///< peers of another attempt are refused
  std::vector<std::byte> key;  ///< shared secret of the mutual HMAC challenge; may be set later with set_key
  bool tls = false;  ///< ATOLL_TLS: every TCP connection uses TLS 1.3 with that key, which must be given at the start
  std::string name;  ///< "rank 3", for messages
  std::string host;  ///< ATOLL_HOST; empty: derived from the machine's boot id and network namespace
  std::string interface;           ///< ATOLL_IFACE; empty: the route towards `route_hint`
  std::string route_hint;          ///< host name or address of the store, to pick the advertised address; may be empty
  std::string advertised_address;  ///< ATOLL_ADDRESS; empty: the address of the chosen interface
  std::uint16_t port_first = 0;    ///< ATOLL_PORTS "first-last"; 0: any free port
  std::uint16_t port_last = 0;
  std::string rails;  ///< ATOLL_RAILS: "auto" (also empty), a number, or interfaces and addresses; see rails.h
  std::string
      device_path;  ///< of this rank's device in sysfs ("/sys/devices/pci0000:3a/..."), to prefer near interfaces
  std::string sysfs = "/sys";                           ///< where the system describes its interfaces
  TransportChoice transport = TransportChoice::kAuto;   ///< ATOLL_TRANSPORT; see choose_kind in endpoint/impl.h
  std::size_t shm_window_bytes = std::size_t{1} << 20;  ///< per channel and direction; a power of two, at least 64 KiB
  std::size_t tcp_window_bytes = std::size_t{4} << 20;  ///< of ucx links, too
  std::shared_ptr<Arena> arena;                         ///< of this process, for Channel::try_lend; null: none
  std::chrono::milliseconds heartbeat{30000};           ///< ATOLL_HEARTBEAT: silence longer than this is a lost peer
  std::chrono::milliseconds connect_timeout{30000};     ///< from the first use of a link to "up"
};

/// One end of a rail: an address of an interface, with the facts that decide the choice of rails.
struct RailAddress {
  std::string tcp;                ///< "10.0.0.1:4711"
  std::uint8_t network_bits = 0;  ///< number of leading bits that name the network; 0: unknown
  std::uint8_t distance = 0;      ///< of the interface from the rank's device: see Distance in interfaces.h
  std::uint32_t megabits = 0;     ///< per second that the interface states; 0: unknown
  bool operator==(const RailAddress&) const = default;
};

/// The addresses at which a peer can be reached; exchanged through the store as bytes.
struct PeerAddress {
  PeerId id;
  std::string host;              ///< equal hosts share memory
  std::string unix_name;         ///< abstract Unix socket
  std::vector<std::string> tcp;  ///< "10.0.0.1:4711", "[fe80::1%eth0]:4711", best first
  std::string name;              ///< "rank 3"
  TransportChoice transport = TransportChoice::kAuto;
  std::vector<RailAddress> rails{};  ///< the first one belongs to tcp.front(); empty: one rail, wherever it leads
  bool rails_are_stated = false;     ///< by the user: the rail may then cross between networks
  UcxReach ucx = UcxReach::kNone;

  std::vector<std::byte> encode() const;
  /// Throws Error(kProtocol) on bytes that do not parse; every length is bounded.
  static PeerAddress decode(std::span<const std::byte> bytes);
};

/// One rank's end of all its links: listeners, the loop thread, the doorbell, and a registry of links by peer.
/// Several may live in one process (ranks as threads). All functions are thread-safe.
class Endpoint {
 public:
  /// Opens the listeners. Throws Error(kUnavailable) naming the interface, port range or limit that prevents it.
  Endpoint(EndpointOptions options, LinkObserver& observer);

  /// Shuts down with a short linger unless shutdown() was called, then frees everything.
  ~Endpoint();

  const PeerAddress& address() const noexcept;
  const EndpointOptions& options() const noexcept;
  Doorbell& doorbell() noexcept;
  Loop& loop() noexcept;

  /// The key arrives through the store after the listeners are open: connections that come earlier wait for it.
  void set_key(std::vector<std::byte> key);

  /// Finds the link to `peer` or starts to open it; returns at once. Both sides may open at the same time: the
  /// connection from the smaller PeerId wins. Failures are reported by the link's channels and to the observer.
  Link& link(const PeerAddress& peer);

  /// All links made so far.
  std::vector<Link*> links() const;

  /// Sends what was accepted, tells peers that this end closes in good order, and closes. Idempotent.
  void shutdown(Deadline linger);

  /// Closes everything at once; peers see an end-of-file.
  void abort() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::transport
