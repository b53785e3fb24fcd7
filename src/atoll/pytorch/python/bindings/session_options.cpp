// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>

#include "atoll/infer/wire/codecs.h"
#include "atoll/pytorch/python/bindings/session_arguments.h"
#include "atoll/pytorch/python/process/interrupts.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::pytorch {
namespace {

namespace wire = infer::wire;
using Seconds = std::chrono::duration<double>;

wire::Codec codec_of(const std::string& name) {
  for (const wire::Codec codec : {wire::Codec::kHalf, wire::Codec::kInt8, wire::Codec::kJpeg}) {
    if (name == wire::to_string(codec)) return codec;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "lossy \"" + name + "\" is not known: give half, int8 or jpeg, or leave it out");
}

// Reads the options of the class in Python one by one.
class GivenOptions {
 public:
  explicit GivenOptions(const py::dict& given) : given_(given) {}

  infer::SessionOptions taken() const {
    refuse_unknown();
    infer::SessionOptions made;
    made.policy = get<std::string>("policy", made.policy);
    made.seed = get<std::uint64_t>("seed", made.seed);
    made.chunks = get<int>("chunks", made.chunks);
    made.hedge = infer::hedge_of(get<std::string>("hedge", "deadline"));
    if (has("deadline")) made.deadline = seconds("deadline", 0);
    made.patience = seconds("patience", made.patience.count());
    made.profile_time = checked_seconds("profile_seconds", get<double>("profile_seconds", made.profile_time.count()));
    if (has("lossy")) made.lossy = codec_of(get<std::string>("lossy", ""));
    if (has("engine_tolerance")) made.engine.tolerance = tolerance();
    made.engine.start_limit = seconds("engine_start_limit", made.engine.start_limit.count());
    made.power.compute_watts = get<double>("compute_watts", made.power.compute_watts);
    made.power.idle_watts = get<double>("idle_watts", made.power.idle_watts);
    made.power.radio_watts = get<double>("radio_watts", made.power.radio_watts);
    if (has("server")) made.server = client();
    made.check = check_signals;
    made.logs_refusals = false;  // the class in Python warns
    return made;
  }

 private:
  void refuse_unknown() const {
    constexpr std::array kKnown{"policy",
                                "seed",
                                "chunks",
                                "hedge",
                                "deadline",
                                "patience",
                                "profile_seconds",
                                "lossy",
                                "compute_watts",
                                "idle_watts",
                                "radio_watts",
                                "server",
                                "name",
                                "key_file",
                                "silence",
                                "probe_bytes",
                                "engine_tolerance",
                                "engine_start_limit"};
    for (const auto& [key, value] : given_) {
      const auto name = key.cast<std::string>();
      if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
        std::string names;
        for (const char* each : kKnown) names += (names.empty() ? "" : ", ") + std::string(each);
        throw Error(ErrorKind::kInvalidArgument, "a session has no setting \"" + name + "\": it has " + names);
      }
    }
  }
  Seconds seconds(const char* name, double fallback) const {
    constexpr double kMax = 1e9;
    const double value = get<double>(name, fallback);
    if (value > 0 && value <= kMax) return Seconds(value);
    throw Error(ErrorKind::kInvalidArgument,
                std::string(name) + " is " + std::to_string(value) + ": give seconds above 0 and at most 1e9");
  }
  double tolerance() const {
    const double value = get<double>("engine_tolerance", 0);
    if (value >= 0 && value <= 1) return value;
    throw Error(ErrorKind::kInvalidArgument, "engine_tolerance is " + std::to_string(value) +
                                                 ": give a share of the largest magnitude, from 0 to 1");
  }
  bool has(const char* name) const { return given_.contains(name) && !given_[name].is_none(); }
  template <typename Value>
  Value get(const char* name, Value fallback) const {
    if (!has(name)) return fallback;
    const py::object value = given_[name];
    try {
      return value.cast<Value>();
    } catch (const py::cast_error&) {
      constexpr const char* kWanted = std::is_same_v<Value, std::string> ? "a text"
                                      : std::is_floating_point_v<Value>  ? "a number"
                                      : std::is_unsigned_v<Value>        ? "a whole number of at least 0"
                                                                         : "a whole number";
      throw Error(ErrorKind::kInvalidArgument,
                  std::string(name) + " is " + py::repr(value).cast<std::string>() + ": give " + kWanted);
    }
  }

  infer::ClientOptions client() const {
    infer::ClientOptions made;
    made.server = get<std::string>("server", "");
    made.name = get<std::string>("name", "");
    made.credentials = transport::Credentials::of_key_file(get<std::string>("key_file", ""));
    made.silence = milliseconds_of(seconds("silence", 2).count());
    made.probe_bytes = get<std::size_t>("probe_bytes", made.probe_bytes);
    return made;
  }

  const py::dict& given_;
};

}  // namespace

infer::SessionOptions session_options(const py::dict& given) { return GivenOptions(given).taken(); }

}  // namespace atl::pytorch
