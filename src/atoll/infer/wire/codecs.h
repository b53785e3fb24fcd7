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

// Codecs that pack rows of a tensor into fewer bytes. kRaw, kBits (at most 16 distinct elements), kZstd and kBitsZstd
// are lossless; kHalf, kInt8 and kJpeg are not, and are used only at a user's request.
namespace atl::infer::wire {

/// A packed message. It is never longer than the bytes themselves.
struct Packed {
  Codec codec = Codec::kRaw;     ///< as in the frames' headers
  std::vector<std::byte> bytes;  ///< empty for kRaw: send the tensor's own bytes
  bool operator==(const Packed&) const = default;
};

/// Packs `bytes`, which `type` describes, row-major without gaps. If the codec does not suit the values or does not
/// make them shorter, the result is kRaw (kBitsZstd may become kBits): too many distinct values; kHalf and kInt8 for
/// dtypes other than float32 and float64; kInt8 with NaN or infinities; kJpeg for tensors that are not images
/// (image_layout) or have NaN or infinities. Any thread; each keeps zstd's working memory.
/// Throws Error(kInvalidArgument) if the sizes differ, and for an invalid codec.
///
/// kHalf: the nearest float16, ties to even. Finite values stay finite (at most 65504); infinities and NaN are kept.
/// kInt8: multiples -127 to 127 of a float32 step for each channel (index along dimension 1, with 3 dimensions or more;
/// else one for all), which is the largest magnitude / 127.
/// kJpeg: a JPEG file of quality 90 with colours at half the resolution; floats as 256 values from the message's lowest
/// to its highest one.
Packed pack(Codec codec, const Tensor& type, std::span<const std::byte> bytes);

/// Unpacks into `out`, which must have the type's size (otherwise Error(kInvalidArgument)). Throws Error(kProtocol) for
/// anything that pack cannot have made; `out` may then be filled in part. Reads only `packed`, and allocates no more
/// than `packed` and `type` imply.
void unpack(Codec codec, const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out);

/// "bits_zstd"
const char* to_string(Codec codec) noexcept;
bool is_lossless(Codec codec) noexcept;

/// The deviation of unpacked values from the packed ones, relative to the largest finite magnitude. Zero for dtypes
/// without a lossy codec and for zeros; two NaN count as equal, as do equal infinities.
struct Loss {
  double max = 0;
  double mean = 0;
};
/// Measures the loss of `bytes` that have been packed, for float32 and float64, and with kJpeg also uint8; other dtypes
/// have no lossy codec. Throws as unpack does.
Loss loss_of(Codec codec, const Tensor& type, std::span<const std::byte> bytes, std::span<const std::byte> packed);

/// The effect of one lossless codec on a tensor's bytes on this machine. The other side is assumed to be as fast.
struct CodecSpeed {
  double packed_share = 1;  ///< packed bytes per byte; 1: no gain
  double pack_seconds_per_byte = 0;
  double unpack_seconds_per_byte = 0;
};
/// By codec: kRaw, kBits, kZstd, kBitsZstd.
using Measured = std::array<CodecSpeed, 4>;

struct Choice {
  Codec codec = Codec::kRaw;
  double seconds = 0;  ///< predicted: packing, transfer, unpacking
};

/// Chooses the codec with which `bytes` are predicted to arrive soonest, by the sum of packing, transfer and unpacking.
/// kRaw unless another one saves more than 5 % of its time, and if the rate is not known (not above 0, or infinite).
Choice choose(std::size_t bytes, double link_bytes_per_second, const Measured& speeds);

/// A sample of at most `most_bytes`, in whole elements taken evenly from all of `bytes`.
std::vector<std::byte> sample_of(const Tensor& type, std::span<const std::byte> bytes, std::size_t most_bytes);

/// Packs the messages of one tensor in one direction with the codec that is predicted to be quickest. It learns from
/// samples, at the first message and at every 16th, and from what it packs. Samples cost at most 2 % of the time of
/// transfers so far, except for one trial that took longer than those before it. One thread at a time.
class CodecChooser {
 public:
  /// `now`: seconds of any clock; default: the machine's.
  explicit CodecChooser(std::function<double()> now = {});

  /// Throws as wire::pack does. If the rate is not known (not above 0, or infinite), uses kRaw and tries no samples.
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
