// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/bundle/weight_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/json/fields.h"

namespace atl::infer {
namespace {

using json::Json;

constexpr std::size_t kLengthBytes = 8;
constexpr json::Rules kHeaderRules{.kind = ErrorKind::kProtocol, .levels = 4, .has_unique_keys = true};  // it has 3

[[noreturn]] void unavailable(const std::string& name, int error_number) {
  throw Error(ErrorKind::kUnavailable, with_errno("the weight file " + name + " cannot be mapped", error_number));
}

HostBytes map(int descriptor, const std::string& name) {
  const off_t end = ::lseek(descriptor, 0, SEEK_END);  // works in a sandbox that does not allow stat
  if (end < 0) unavailable(name, errno);
  const auto size = static_cast<std::size_t>(end);
  if (size == 0) unavailable(name, EINVAL);
  void* const begin = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (begin == MAP_FAILED) unavailable(name, errno);
  std::shared_ptr<const void> owner(begin, [size](void* at) { ::munmap(at, size); });
  return {{static_cast<const std::byte*>(begin), size}, std::move(owner)};
}

HostBytes map(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) unavailable(path, errno);
  return map(file.get(), path);
}

std::optional<Dtype> dtype_of(std::string_view name) {
  constexpr std::array kNames{"F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "BOOL"};  // by Dtype
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? std::nullopt : std::optional(static_cast<Dtype>(found - kNames.begin()));
}

bool is_padding(const std::string& name) {
  constexpr std::string_view kPrefix = "_pad";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Whether all are non-negative and below kIntegerBound.
bool are_counts(const std::vector<std::int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](auto value) { return value >= 0 && value < kIntegerBound; });
}

// The bytes of the elements; none where there are too many.
std::optional<std::int64_t> bytes_in(const Tensor& type) {
  std::int64_t elements = 1;
  for (const std::int64_t size : type.shape) {
    if (size == 0) return 0;
  }
  for (const std::int64_t size : type.shape) {
    if (elements > kIntegerBound / size) return std::nullopt;
    elements *= size;
  }
  return elements * bytes_of(type.dtype);
}

struct Placed {
  std::string name;
  Tensor type;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

[[noreturn]] void broken_file(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kProtocol, "the weight file " + file + ": " + what);
}

Placed placed(const std::string& name, const Json& entry, const std::string& file) {
  const std::string quoted = "\"" + name.substr(0, 80) + "\"";
  json::Fields fields(entry, "the weight file " + file + ": " + quoted, ErrorKind::kProtocol);
  const std::optional<Dtype> dtype = dtype_of(fields.text("dtype"));
  const Shape shape = fields.integers("shape");
  const std::vector<std::int64_t> offsets = fields.integers("data_offsets");
  fields.done();
  const bool are_few = name.size() <= kMaxNameBytes && shape.size() <= kMaxDims && offsets.size() == 2;
  if (dtype && are_few && are_counts(shape) && are_counts(offsets)) {
    const Tensor type{*dtype, shape};
    if (bytes_in(type) == offsets[1] - offsets[0]) return {name, type, offsets[0], offsets[1]};
  }
  broken_file(file, quoted + " has an invalid description: its dtype, shape and data_offsets must match");
}

// The tensors that `header` describes, in the order of their bytes, of which the first is byte `data` of the file.
std::vector<WeightFile::Entry> placed_entries(const Json& header, std::size_t data, const HostBytes& bytes,
                                              const std::string& file) {
  const std::span<const std::byte> all = bytes.bytes;
  std::vector<Placed> tensors;
  for (const auto& [name, entry] : header.items()) tensors.push_back(placed(name, entry, file));
  std::sort(tensors.begin(), tensors.end(),
            [](const Placed& a, const Placed& b) { return std::pair(a.first, a.last) < std::pair(b.first, b.last); });
  std::vector<WeightFile::Entry> entries;
  std::int64_t end = 0;
  for (Placed& each : tensors) {
    if (each.first != end) {
      broken_file(file, "\"" + each.name + "\" begins at byte " + std::to_string(each.first) +
                            " of the data, but the tensor before it ends at " + std::to_string(end));
    }
    end = each.last;
    const std::size_t begin = data + static_cast<std::size_t>(each.first);
    const auto size = static_cast<std::size_t>(each.last - each.first);
    if (begin > all.size() || size > all.size() - begin) broken_file(file, "it ends within \"" + each.name + "\"");
    if (begin % kWeightAlignment != 0 && !is_padding(each.name)) {
      broken_file(file, "\"" + each.name + "\" begins at byte " + std::to_string(begin) +
                            ", which is not a multiple of " + std::to_string(kWeightAlignment) +
                            ": export the model again");
    }
    entries.push_back({std::move(each.name), std::move(each.type), {all.subspan(begin, size), bytes.owner}});
  }
  if (data + static_cast<std::size_t>(end) != all.size()) {
    broken_file(file, "it has " + std::to_string(all.size()) + " bytes, but its header describes " +
                          std::to_string(data + static_cast<std::size_t>(end)));
  }
  return entries;
}

std::vector<WeightFile::Entry> read_entries(const HostBytes& bytes, const std::string& file) {
  const std::span<const std::byte> all = bytes.bytes;
  if (all.size() < kLengthBytes) broken_file(file, "it has " + std::to_string(all.size()) + " bytes");
  const auto length = ByteReader(all, "a weight file").integer<std::uint64_t>();
  if (length > kMaxWeightHeaderBytes || length > all.size() - kLengthBytes) {
    broken_file(file, "it announces a header of " + std::to_string(length) + " bytes; the file has " +
                          std::to_string(all.size()) + ", and a header has at most " +
                          std::to_string(kMaxWeightHeaderBytes));
  }
  const auto* text = reinterpret_cast<const char*>(all.data()) + kLengthBytes;
  const std::string what = "the weight file " + file + ": its header";
  const Json header = json::parse({text, static_cast<std::size_t>(length)}, what, kHeaderRules);
  if (!header.is_object()) broken_file(file, "its header is not a JSON object");
  if (header.size() > kMaxTensors) broken_file(file, "it has " + std::to_string(header.size()) + " tensors");
  return placed_entries(header, kLengthBytes + static_cast<std::size_t>(length), bytes, file);
}

}  // namespace

WeightFile::WeightFile(const std::string& path) : WeightFile(map(path), path) {}

WeightFile::WeightFile(int descriptor) : WeightFile(map(descriptor, "of the model"), "of the model") {}

WeightFile::WeightFile(HostBytes bytes, const std::string& name)
    : bytes_(std::move(bytes)), entries_(read_entries(bytes_, name)) {}

std::map<std::string, HostBytes> WeightFile::tensors() const {
  std::map<std::string, HostBytes> found;
  for (const Entry& entry : entries_) found.emplace(entry.name, entry.bytes);
  return found;
}

}  // namespace atl::infer
