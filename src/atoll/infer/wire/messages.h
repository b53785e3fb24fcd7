// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/infer/plan.h"
#include "atoll/infer/rules_version.h"
#include "atoll/infer/wire/frame.h"

// The messages that a client (the robot) and a server exchange in control frames. A model is identified by a non-zero
// number that the client assigns, an inference by a number that ascends from 1.
namespace atl::infer::wire {

// Everything has a bound, because messages may come from strangers.
inline constexpr std::size_t kMaxLabelBytes = 256;   ///< names and versions
inline constexpr std::size_t kMaxNoteBytes = 4'096;  ///< sentences for people
inline constexpr std::uint32_t kMaxChunks = 65'536;
inline constexpr std::uint64_t kMaxMicroseconds = 1'000'000'000'000'000;  ///< of every time; about 30 years
inline constexpr std::uint32_t kMaxTurns = 65'536;                        ///< simultaneous ones on a device
inline constexpr std::uint32_t kMaxWaiting = 1'000'000;                   ///< inferences that wait for a turn

/// From the client, first of all.
struct Hello {
  std::string software{};               ///< "atoll 0.1.0"
  std::string name{};                   ///< of the client, for logs
  std::uint32_t rules = kRulesVersion;  ///< version of its division rules; 0: a release that does not send it
  std::uint16_t port = 0;               ///< of its end of the connection, if it understands Offer
  bool operator==(const Hello&) const = default;
};

/// From the server, in reply to Hello.
struct Welcome {
  std::string software{};
  std::string device{};                ///< "cuda:0"
  std::uint64_t most_model_bytes = 0;  ///< of one model's weights
  std::uint32_t most_sessions = 0;
  std::uint32_t models = 0;  ///< number of models that it holds
  std::string note{};
  std::uint32_t rules = kRulesVersion;  ///< likewise
  bool operator==(const Welcome&) const = default;
};

using BundleHash = std::array<std::byte, 32>;  ///< SHA-256 of the graph's text followed by the weight file

/// From the client: it will use this model.
struct Open {
  std::uint64_t model = 0;
  BundleHash hash{};
  std::uint64_t graph_bytes = 0;
  std::uint64_t weight_bytes = 0;
  bool operator==(const Open&) const = default;
};

/// From the server: the parts of a model that it lacks.
struct Need {
  std::uint64_t model = 0;
  bool graph = false;
  std::uint64_t weights_from = 0;  ///< the upload continues at this byte; the file's size: nothing is needed
  bool operator==(const Need&) const = default;
};

/// From the client: a model's graph (graph_json.h).
struct GraphText {
  std::uint64_t model = 0;
  std::string text{};
  bool operator==(const GraphText&) const = default;
};

/// From the server: other models or inferences are before this one.
struct Queued {
  std::uint64_t model = 0;
  std::uint32_t ahead = 0;
  std::string why{};
  bool operator==(const Queued&) const = default;
};

/// From the server: a model can be used. Times on the server's device, by node of the graph.
struct Ready {
  std::uint64_t model = 0;
  std::string device{};
  std::vector<double> fixed{};     ///< seconds of a launch
  std::vector<double> per_row{};   ///< seconds for each row
  std::vector<double> whole{};     ///< seconds for all rows
  std::int32_t input_tensor = -1;  ///< rows are those of a division of this input along `dim` (operators_of), or -1, -1
  std::int32_t dim = -1;
  bool operator==(const Ready&) const = default;
};

/// From the client: a division of the model, from now on known by this number.
struct Divide {
  std::uint64_t model = 0;
  std::uint32_t division = 0;
  Plan plan{};
  Codec answer_codec = Codec::
      kRaw;  ///< kHalf, kInt8: the server packs floating-point rows with it; otherwise without loss, by any codec
  bool operator==(const Divide&) const = default;
};

/// From the server, in reply to Divide.
struct Divided {
  std::uint64_t model = 0;
  std::uint32_t division = 0;
  bool operator==(const Divided&) const = default;
};

/// From the client: an inference starts; its rows follow in kTensor frames.
struct Run {
  std::uint64_t model = 0;
  std::uint64_t inference = 0;
  std::uint32_t division = 0;
  std::uint64_t budget_us = 0;  ///< time after which the answer is not wanted any more; 0: unlimited
  bool operator==(const Run&) const = default;
};

/// The recent use of a server's device by clients other than the one that receives this: means over seconds. All 0: not
/// reported.
struct Load {
  std::uint32_t turns = 0;    ///< inferences that may compute at once
  double computing = 0;       ///< mean number of others that compute; at most `turns`
  double waiting = 0;         ///< mean number of others that wait for a turn
  std::uint64_t turn_us = 0;  ///< mean length of one of their turns
  bool operator==(const Load&) const = default;
};

/// From the server, after an inference's last rows.
struct Done {
  std::uint64_t inference = 0;
  std::uint64_t compute_us = 0;
  std::uint64_t waited_us = 0;    ///< for its turn on the device
  std::uint64_t received_us = 0;  ///< from the arrival of Run to that of the last rows
  Load load{};
  bool operator==(const Done&) const = default;
};

/// From the client: the answer is not wanted any more.
struct Cancel {
  std::uint64_t inference = 0;
  bool operator==(const Cancel&) const = default;
};

/// From both: a message of rows, or a probe, has arrived completely.
struct Ack {
  std::uint64_t inference = 0;  ///< 0: a probe
  std::int32_t tensor = 0;
  std::int32_t rows_begin = 0;
  std::uint64_t bytes = 0;        ///< as it was packed
  std::uint64_t elapsed_us = 0;   ///< from the arrival of its first frame to that of its last
  std::uint64_t first_bytes = 0;  ///< of the first frame, which took none of that time
  bool operator==(const Ack&) const = default;
};

/// From both.
struct Ping {
  std::uint64_t token = 0;
  bool operator==(const Ping&) const = default;
};
struct Pong {
  std::uint64_t token = 0;  ///< the Ping's
  Load load{};              ///< set by servers
  bool operator==(const Pong&) const = default;
};

/// From the server.
struct Failed {
  std::uint64_t model = 0;      ///< 0: the connection
  std::uint64_t inference = 0;  ///< 0: the model
  ErrorKind kind = ErrorKind::kInternal;
  std::string text{};
  bool operator==(const Failed&) const = default;
};

/// From the server: it is shutting down and starts nothing new.
struct Draining {
  std::string text{};
  bool operator==(const Draining&) const = default;
};

/// From the client: it does not use this model any more.
struct Close {
  std::uint64_t model = 0;
  bool operator==(const Close&) const = default;
};

/// From both, last of all.
struct Bye {
  bool operator==(const Bye&) const = default;
};

/// Only between a server's front process and a worker process: the right to compute.
struct Turn {
  enum class What : std::uint8_t {
    kWanted,  ///< from the worker: it has rows and could compute
    kGiven,   ///< from the front process: it may compute
    kOver,    ///< from the worker: it waits for rows, or has finished
  };
  What what = What::kWanted;
  bool operator==(const Turn&) const = default;
};

/// From the server, after Ready, to a client on its host, whose connection comes from the port that Hello names, as it
/// does not through a relay or a tunnel: memory for the payloads of this model's rows.
/// The client can fetch it once, at a door that only this host has (link/memory_door.h).
struct Offer {
  std::uint64_t model = 0;
  std::array<std::byte, 16> door{};
  std::array<std::byte, 16> ticket{};
  bool operator==(const Offer&) const = default;
};

/// From the client, in reply to Offer: it has mapped the memory, so that both may send kLent frames. No reply: it is on
/// another host, and nothing changes.
struct Mapped {
  std::uint64_t model = 0;
  bool operator==(const Mapped&) const = default;
};

/// The message of an error that concerns this model and inference; 0 as in Failed.
Failed failed(std::uint64_t model, std::uint64_t inference, const Error& error);

/// The name and version that each end reports, for people and logs: "atoll 0.1.0".
const char* software() noexcept;

/// A duration as messages hold it, and the other way round.
inline std::uint64_t microseconds(Clock::duration duration) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}
inline double seconds(std::uint64_t us) { return static_cast<double>(us) * 1e-6; }

using Message = std::variant<Hello, Welcome, Open, Need, GraphText, Queued, Ready, Divide, Divided, Run, Done, Cancel,
                             Ack, Ping, Pong, Failed, Draining, Close, Bye, Turn, Offer, Mapped>;

/// "Hello"
const char* name_of(const Message& message) noexcept;

/// Encodes a message as the payload of a control frame. Sentences for people (note, why, text of Failed and Draining)
/// are cut if they are too long. Throws Error(kInvalidArgument), which names message and field, for anything else that
/// decode would refuse.
std::vector<std::byte> encode(const Message& message);
/// Makes the control frame of a message. Throws as encode() does, also for a message that is too long for a frame.
FrameBytes make_frame(const Message& message);

/// Reads what encode made, at any alignment. Throws Error(kProtocol), which names message and field, for bytes that do
/// not parse and values out of bounds. Takes no more memory than a small multiple of the payload.
Message decode(std::span<const std::byte> payload);

}  // namespace atl::infer::wire
