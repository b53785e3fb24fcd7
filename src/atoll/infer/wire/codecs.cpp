// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/codecs.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/wire/elements.h"
#include "atoll/infer/wire/few_values.h"
#include "atoll/infer/wire/images.h"
#include "atoll/infer/wire/lossy.h"

namespace atl::infer::wire {
namespace {

using Bytes = std::span<const std::byte>;
using MaybePacked = std::optional<std::vector<std::byte>>;

constexpr int kZstdLevel = 1;
constexpr std::array<unsigned char, 4> kZstdMagic{0x28, 0xb5, 0x2f, 0xfd};

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
};

template <class Context>
Context& required(const std::unique_ptr<Context, FreeContext>& context) {
  if (!context) throw Error(ErrorKind::kUnavailable, "zstd cannot allocate its working memory");
  return *context;
}

// A context takes about a megabyte and is made once for each thread that packs.
ZSTD_CCtx& compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  return required(context);
}
ZSTD_DCtx& decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  return required(context);
}

[[noreturn]] void bad_packed(Codec codec, const std::string& what) {
  throw Error(ErrorKind::kProtocol, std::string("a message packed as ") + to_string(codec) + ": " + what);
}

// None if it does not become shorter.
MaybePacked pack_zstd(Bytes bytes) {
  std::vector<std::byte> packed(bytes.size() - 1);
  const std::size_t size =
      ZSTD_compressCCtx(&compressor(), packed.data(), packed.size(), bytes.data(), bytes.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) return std::nullopt;  // usually because it does not fit
  packed.resize(size);
  return packed;
}

// The content size that a zstd frame declares, if the bytes are exactly one frame. Older formats that zstd may support
// are refused.
std::size_t zstd_content_bytes(Codec codec, Bytes packed) {
  if (packed.size() < kZstdMagic.size() || std::memcmp(packed.data(), kZstdMagic.data(), kZstdMagic.size()) != 0) {
    bad_packed(codec, "it does not begin as a zstd frame");
  }
  if (ZSTD_findFrameCompressedSize(packed.data(), packed.size()) != packed.size())
    bad_packed(codec, "it is not one zstd frame");
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR)
    bad_packed(codec, "it does not declare its size");
  return size;
}

void unpack_zstd(Codec codec, Bytes packed, std::span<std::byte> out) {
  const std::size_t size = zstd_content_bytes(codec, packed);
  if (size != out.size()) {
    bad_packed(codec, "it holds " + std::to_string(size) + " bytes instead of " + std::to_string(out.size()));
  }
  const std::size_t done = ZSTD_decompressDCtx(&decompressor(), out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(done) != 0) bad_packed(codec, ZSTD_getErrorName(done));
  if (done != out.size()) bad_packed(codec, "it ends after " + std::to_string(done) + " bytes");
}

void unpack_bits_zstd(std::size_t element_bytes, Bytes packed, std::span<std::byte> out) {
  const std::size_t size = zstd_content_bytes(Codec::kBitsZstd, packed);
  const std::size_t most = most_few_values_bytes(element_bytes, out.size() / element_bytes);
  if (size > most) {
    bad_packed(Codec::kBitsZstd,
               "it holds " + std::to_string(size) + " bytes: at most " + std::to_string(most) + " are possible");
  }
  std::vector<std::byte> few(size);
  unpack_zstd(Codec::kBitsZstd, packed, few);
  unpack_few_values(element_bytes, few, out);
}

void require_size(const Tensor& type, std::size_t bytes) {
  if (static_cast<std::uint64_t>(type.bytes()) == bytes) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::to_string(bytes) + " bytes were given for rows of " + std::to_string(type.bytes()) + " bytes");
}

template <class F>
Loss loss_between(Bytes before, Bytes after) {
  const std::size_t count = before.size() / sizeof(F);
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(element<F>(before, i));
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  if (largest == 0) return {};
  Loss loss;
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<double>(element<F>(before, i));
    const auto b = static_cast<double>(element<F>(after, i));
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double error = std::fabs(a - b) / largest;
    loss.max = std::max(loss.max, error);
    loss.mean += error / static_cast<double>(count);
  }
  return loss;
}

}  // namespace

Packed pack(Codec codec, const Tensor& type, std::span<const std::byte> bytes) {
  require_size(type, bytes.size());
  if (codec > Codec::kJpeg) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string("rows cannot be packed as ") + to_string(codec) + ": choose half, int8 or jpeg");
  }
  const auto element_bytes = static_cast<std::size_t>(bytes_of(type.dtype));
  if (codec == Codec::kRaw || bytes.empty()) return {};
  MaybePacked packed;
  if (codec == Codec::kZstd) packed = pack_zstd(bytes);
  if (codec == Codec::kHalf) packed = pack_half(type.dtype, bytes);
  if (codec == Codec::kInt8) packed = pack_int8(type, bytes);
  if (codec == Codec::kJpeg) packed = pack_jpeg(type, bytes);
  if (codec == Codec::kBits || codec == Codec::kBitsZstd) packed = pack_few_values(element_bytes, bytes);
  if (!packed || packed->size() >= bytes.size()) return {};
  if (codec == Codec::kBitsZstd) {
    MaybePacked twice = pack_zstd(*packed);
    if (!twice) return {Codec::kBits, std::move(*packed)};
    packed = std::move(twice);
  }
  return {codec, std::move(*packed)};
}

void unpack(Codec codec, const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out) {
  require_size(type, out.size());
  if (codec == Codec::kRaw) {
    if (packed.size() != out.size()) {
      bad_packed(codec, "it has " + std::to_string(packed.size()) + " bytes instead of " + std::to_string(out.size()));
    }
    if (!out.empty()) std::memcpy(out.data(), packed.data(), out.size());
    return;
  }
  if (out.empty()) bad_packed(codec, "there are no elements to pack");
  const auto element_bytes = static_cast<std::size_t>(bytes_of(type.dtype));
  switch (codec) {
    case Codec::kBits: return unpack_few_values(element_bytes, packed, out);
    case Codec::kZstd: return unpack_zstd(codec, packed, out);
    case Codec::kBitsZstd: return unpack_bits_zstd(element_bytes, packed, out);
    case Codec::kHalf: return unpack_half(type.dtype, packed, out);
    case Codec::kInt8: return unpack_int8(type, packed, out);
    case Codec::kJpeg: return unpack_jpeg(type, packed, out);
    case Codec::kRaw: break;
  }
  bad_packed(codec, "this Atoll cannot unpack it");
}

const char* to_string(Codec codec) noexcept {
  constexpr std::array kNames{"raw", "bits", "zstd", "bits_zstd", "half", "int8", "jpeg"};
  const auto place = static_cast<std::size_t>(codec);
  return place < kNames.size() ? kNames[place] : "an unknown codec";
}

bool is_lossless(Codec codec) noexcept { return codec <= Codec::kBitsZstd; }

Loss loss_of(Codec codec, const Tensor& type, std::span<const std::byte> bytes, std::span<const std::byte> packed) {
  if (is_lossless(codec)) return {};
  std::vector<std::byte> after(bytes.size());
  unpack(codec, type, packed, after);
  if (type.dtype == Dtype::kFloat32) return loss_between<float>(bytes, after);
  if (type.dtype == Dtype::kFloat64) return loss_between<double>(bytes, after);
  return loss_between<std::uint8_t>(bytes, after);
}

}  // namespace atl::infer::wire
