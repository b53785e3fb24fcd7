// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/bundle/weight_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/json/parse.h"

namespace atl::infer {
namespace {

using json::Json;

constexpr std::size_t kLengthBytes = 8;
constexpr json::Rules kHeaderRules{.kind = ErrorKind::kProtocol, .levels = 4, .has_unique_keys = true};  // it has 3

struct Mapping {
  void* begin = nullptr;
  std::size_t size = 0;
  Mapping(void* at, std::size_t bytes) : begin(at), size(bytes) {}
  ~Mapping() { ::munmap(begin, size); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

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
  return {{static_cast<const std::byte*>(begin), size}, std::make_shared<const Mapping>(begin, size)};
}

HostBytes map(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) unavailable(path, errno);
  return map(file.get(), path);
}

std::optional<Dtype> dtype_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Dtype>, 10> kNames = {{{"F16", Dtype::kFloat16},
                                                                          {"BF16", Dtype::kBfloat16},
                                                                          {"F32", Dtype::kFloat32},
                                                                          {"F64", Dtype::kFloat64},
                                                                          {"I8", Dtype::kInt8},
                                                                          {"I16", Dtype::kInt16},
                                                                          {"I32", Dtype::kInt32},
                                                                          {"I64", Dtype::kInt64},
                                                                          {"U8", Dtype::kUint8},
                                                                          {"BOOL", Dtype::kBool}}};
  for (const auto& [text, dtype] : kNames) {
    if (text == name) return dtype;
  }
  return std::nullopt;
}

bool is_padding(const std::string& name) {
  constexpr std::string_view kPrefix = "_pad";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// A count in the header: a non-negative integer below kIntegerBound.
std::optional<std::int64_t> count_of(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto count = value.get<std::uint64_t>();
  if (count >= static_cast<std::uint64_t>(kIntegerBound)) return std::nullopt;
  return static_cast<std::int64_t>(count);
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

std::optional<Placed> placed(const std::string& name, const Json& entry) {
  if (!entry.is_object() || entry.size() != 3 || name.size() > kMaxNameBytes) return std::nullopt;
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end()) return std::nullopt;
  if (!dtype->is_string() || !shape->is_array() || !offsets->is_array()) return std::nullopt;
  if (offsets->size() != 2 || shape->size() > kMaxDims) return std::nullopt;
  Placed made;
  made.name = name;
  const auto known = dtype_of(dtype->get_ref<const std::string&>());
  if (!known) return std::nullopt;
  made.type.dtype = *known;
  for (const Json& size : *shape) {
    const auto count = count_of(size);
    if (!count) return std::nullopt;
    made.type.shape.push_back(*count);
  }
  const auto first = count_of(offsets->at(0));
  const auto last = count_of(offsets->at(1));
  const auto bytes = bytes_in(made.type);
  if (!first || !last || !bytes || *last < *first || *last - *first != *bytes) return std::nullopt;
  made.first = *first;
  made.last = *last;
  return made;
}

[[noreturn]] void broken_file(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kProtocol, "the weight file " + file + ": " + what);
}

// The tensors that `header` describes, in the order of their bytes, of which the first is byte `data` of the file.
std::vector<WeightFile::Entry> placed_entries(const Json& header, std::size_t data, const HostBytes& bytes,
                                              const std::string& file) {
  const std::span<const std::byte> all = bytes.bytes;
  std::vector<Placed> tensors;
  for (const auto& [name, entry] : header.items()) {
    auto found = placed(name, entry);
    if (!found) {
      broken_file(file, "\"" + name.substr(0, 80) +
                            "\" has an invalid description: its dtype, shape and data_offsets must match");
    }
    tensors.push_back(std::move(*found));
  }
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
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(all[i]) << (8 * i);
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
