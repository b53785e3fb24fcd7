// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/infer/wire/codecs.h"

namespace atl::infer::wire {
namespace {

constexpr double kMinGain = 0.05;
constexpr double kProbeShare = 0.02;
constexpr int kProbeEvery = 16;
constexpr std::size_t kMaxSampleBytes = std::size_t{64} << 10;
constexpr std::size_t kMinSampleBytes = 2048;
constexpr double kFirstSecondsPerByte = 50e-9;  // a pessimistic guess of the cost of trying all codecs
constexpr std::size_t kSamplePieces = 8;
constexpr std::size_t kWarmUpBytes = 256;

double machine_seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

bool is_known(double rate) { return rate > 0 && std::isfinite(rate); }

std::size_t index_of(Codec codec) { return static_cast<std::size_t>(codec); }

Tensor row_of(Dtype dtype, std::size_t bytes) { return {dtype, {static_cast<std::int64_t>(bytes) / bytes_of(dtype)}}; }

}  // namespace

Choice choose(std::size_t bytes, double link_bytes_per_second, const Measured& speeds) {
  if (!is_known(link_bytes_per_second)) return {};
  const auto size = static_cast<double>(bytes);
  const Choice raw{Codec::kRaw, size / link_bytes_per_second};
  Choice best = raw;
  for (const Codec codec : {Codec::kBits, Codec::kZstd, Codec::kBitsZstd}) {
    const CodecSpeed& speed = speeds[index_of(codec)];
    const double seconds = size * (speed.pack_seconds_per_byte + speed.unpack_seconds_per_byte +
                                   speed.packed_share / link_bytes_per_second);
    if (speed.packed_share < 1 && seconds < best.seconds) best = {codec, seconds};
  }
  return best.seconds < (1 - kMinGain) * raw.seconds ? best : raw;
}

std::vector<std::byte> sample_of(const Tensor& type, std::span<const std::byte> bytes, std::size_t most_bytes) {
  if (bytes.size() <= most_bytes) return {bytes.begin(), bytes.end()};
  const auto element_bytes = static_cast<std::size_t>(bytes_of(type.dtype));
  const std::size_t elements = bytes.size() / element_bytes;
  const std::size_t wanted = most_bytes / element_bytes;
  const std::size_t pieces = std::min(kSamplePieces, wanted);
  std::vector<std::byte> sample;
  if (pieces == 0) return sample;
  const std::size_t length = wanted / pieces;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t begin = pieces == 1 ? 0 : piece * (elements - length) / (pieces - 1);
    const auto part = bytes.subspan(begin * element_bytes, length * element_bytes);
    sample.insert(sample.end(), part.begin(), part.end());
  }
  return sample;
}

CodecChooser::CodecChooser(std::function<double()> now)
    : now_(now ? std::move(now) : machine_seconds), probe_seconds_per_byte_(kFirstSecondsPerByte) {}

Packed CodecChooser::pack(const Tensor& type, std::span<const std::byte> bytes, double link_bytes_per_second) {
  if (!is_known(link_bytes_per_second) || bytes.empty()) return wire::pack(Codec::kRaw, type, bytes);
  transfer_seconds_ += static_cast<double>(bytes.size()) / link_bytes_per_second;
  messages_until_probe_ = std::max(0, messages_until_probe_ - 1);
  if (messages_until_probe_ == 0) probe(type, bytes, kProbeShare * transfer_seconds_ - probe_seconds_);

  const Codec codec = choose(bytes.size(), link_bytes_per_second, measured_).codec;
  const double begin = now_();
  Packed packed = wire::pack(codec, type, bytes);
  if (codec != Codec::kRaw) {
    const auto size = static_cast<double>(bytes.size());
    CodecSpeed& speed = measured_[index_of(codec)];
    speed.packed_share = packed.codec == Codec::kRaw ? 1 : static_cast<double>(packed.bytes.size()) / size;
    speed.pack_seconds_per_byte = (now_() - begin) / size;
  }
  return packed;
}

void CodecChooser::probe(const Tensor& type, std::span<const std::byte> bytes, double budget_seconds) {
  const double affordable =
      std::clamp(budget_seconds / probe_seconds_per_byte_, 0.0, static_cast<double>(kMaxSampleBytes));
  const auto most_bytes = static_cast<std::size_t>(affordable);
  if (most_bytes < std::min(kMinSampleBytes, bytes.size())) return;
  const double begin = now_();
  const std::vector<std::byte> sample = sample_of(type, bytes, most_bytes);
  if (probe_seconds_ == 0) {
    // The first call of zstd on a thread makes its context, so its time is not representative.
    const std::size_t least = std::min(sample.size(), kWarmUpBytes);
    static_cast<void>(try_codec(Codec::kZstd, type, std::span(sample).first(least)));
  }
  for (const Codec codec : {Codec::kBits, Codec::kZstd}) {
    measured_[index_of(codec)] = try_codec(codec, type, sample);
  }
  const bool are_few = measured_[index_of(Codec::kBits)].packed_share < 1;
  measured_[index_of(Codec::kBitsZstd)] = are_few ? try_codec(Codec::kBitsZstd, type, sample) : CodecSpeed{};
  const double spent = now_() - begin;
  probe_seconds_ += spent;
  probe_seconds_per_byte_ = std::max(spent / static_cast<double>(sample.size()), 1e-12);
  messages_until_probe_ = kProbeEvery;
}

CodecSpeed CodecChooser::try_codec(Codec codec, const Tensor& type, std::span<const std::byte> sample) {
  const Tensor row = row_of(type.dtype, sample.size());
  const auto size = static_cast<double>(sample.size());
  const double begin = now_();
  const Packed packed = wire::pack(codec, row, sample);
  const double middle = now_();
  if (packed.codec == Codec::kRaw) return {1, (middle - begin) / size, 0};
  std::vector<std::byte> out(sample.size());
  const double unpacking = now_();
  wire::unpack(packed.codec, row, packed.bytes, out);
  return {static_cast<double>(packed.bytes.size()) / size, (middle - begin) / size, (now_() - unpacking) / size};
}

}  // namespace atl::infer::wire
