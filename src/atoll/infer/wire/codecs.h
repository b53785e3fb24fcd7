// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/wire/frame.h"

// How rows of a tensor become fewer bytes. kRaw, kBits (at most 16 distinct elements), kZstd and kBitsZstd give back the same
// bits; kHalf, kInt8 and kJpeg do not, and are used where a user asks for them.
namespace atl::infer::wire {

/// A packed message. It is never longer than the bytes themselves.
struct Packed {
  Codec codec = Codec::kRaw;     ///< as in the frames' headers
  std::vector<std::byte> bytes;  ///< empty for kRaw: the tensor's own bytes are what to send
  bool operator==(const Packed&) const = default;
};

/// Packs `bytes`, which `type` describes, row-major without gaps. Where the codec does not suit the values or does not make them
/// fewer, the result is kRaw (kBitsZstd may become kBits): too many distinct values; kHalf and kInt8 for dtypes other
/// than float32 and float64; kInt8 with NaN or infinities; kJpeg for what is no image (image_layout) or has NaN or
/// infinities. Any thread; each keeps the memory that zstd works in.
/// Error(kInvalidArgument) where the sizes differ, and for what is no codec.
///
/// kHalf: float16, the nearest, ties to even. What is finite stays finite (at most 65504); infinities and NaN stay.
/// kInt8: multiples -127 to 127 of a float32 step for each channel (index along dimension 1, with 3 dimensions or more; else one
/// for all), which is the largest magnitude / 127.
/// kJpeg: a JPEG file of quality 90 with colours at half the resolution; floats as 256 values from the message's lowest to its
/// highest one.
Packed pack(Codec codec, const Tensor& type, std::span<const std::byte> bytes);

/// Fills `out`, which must have the type's size (else Error(kInvalidArgument)). Error(kProtocol) for anything that pack cannot have
/// made, out of which `out` may hold a part. Reads and takes no memory beyond what `packed` and `type` explain.
void unpack(Codec codec, const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out);

/// "bits_zstd"
const char* to_string(Codec codec) noexcept;
bool is_lossless(Codec codec) noexcept;

/// How far unpacked values are from the packed ones, relative to the largest finite magnitude. Zero for what has no lossy
/// codec or is all zero; NaN for NaN and infinities that are the same count as equal.
struct Loss {
  double max = 0;
  double mean = 0;
};
/// Packs and unpacks. float32 and float64, of kJpeg also uint8; others have no lossy codec. Errors as pack.
Loss measure_loss(Codec codec, const Tensor& type, std::span<const std::byte> bytes);
/// The same of `bytes` that have been packed. Errors as unpack.
Loss loss_of(Codec codec, const Tensor& type, std::span<const std::byte> bytes, std::span<const std::byte> packed);

/// What one lossless codec does to a tensor's bytes on this machine. The other side is taken to be as quick.
struct CodecSpeed {
  double packed_share = 1;  ///< packed bytes per byte; 1: it does not make them fewer
  double pack_seconds_per_byte = 0;
  double unpack_seconds_per_byte = 0;
};
/// By codec: kRaw, kBits, kZstd, kBitsZstd.
using Measured = std::array<CodecSpeed, 4>;

struct Choice {
  Codec codec = Codec::kRaw;
  double seconds = 0;  ///< predicted: packing, transfer, unpacking
};

/// The codec with which `bytes` are predicted to arrive soonest, one after the other; kRaw unless another one saves more than
/// 5 % of its time, and where the rate is not known (not above 0, or infinite).
Choice choose(std::size_t bytes, double link_bytes_per_second, const Measured& speeds);

/// At most `most_bytes` of whole elements, taken evenly from all over `bytes`.
std::vector<std::byte> sample_of(const Tensor& type, std::span<const std::byte> bytes, std::size_t most_bytes);

/// Packs the messages of one tensor in one direction as they are predicted to arrive soonest. It learns from samples, at the
/// first message and every 16, and from what it packs. Trying samples costs at most 2 % of the transfers' time so far, but
/// for one trial that was costlier than the ones before it. One thread at a time; two do not share one.
class CodecChooser {
 public:
  /// `now`: seconds of any clock; none: the machine's.
  explicit CodecChooser(std::function<double()> now = {});

  /// Errors as wire::pack. A rate that is not known (not above 0, or infinite): kRaw, and nothing is tried.
  Packed pack(const Tensor& type, std::span<const std::byte> bytes, double link_bytes_per_second);

  const Measured& measured() const noexcept { return measured_; }
  double probe_seconds() const noexcept { return probe_seconds_; }        ///< spent on samples
  double transfer_seconds() const noexcept { return transfer_seconds_; }  ///< of all messages, predicted from the rates

 private:
  void probe(const Tensor& type, std::span<const std::byte> bytes, double budget_seconds);
  CodecSpeed try_codec(Codec codec, const Tensor& type, std::span<const std::byte> sample);

  std::function<double()> now_;
  Measured measured_{};
  int messages_until_probe_ = 0;
  double probe_seconds_per_byte_;
  double probe_seconds_ = 0;
  double transfer_seconds_ = 0;
};

}  // namespace atl::infer::wire
