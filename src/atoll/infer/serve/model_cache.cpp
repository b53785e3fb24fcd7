// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/model_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/infer/bundle/bundle.h"
#include "atoll/infer/hash_text.h"
#include "atoll/transport/auth.h"

namespace atl::infer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGraph = "/graph.json";
constexpr const char* kWeights = "/weights.safetensors";
constexpr const char* kPart = ".part";
constexpr std::size_t kFileReadBytes = std::size_t{1} << 20;
constexpr std::uint64_t kMinModelBytes = std::uint64_t{1} << 12;  // the minimum that a model counts for

[[noreturn]] void fail(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

Fd open_file(const std::string& path, int flags) {
  Fd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) fail(ErrorKind::kUnavailable, with_errno(path + " cannot be opened", errno));
  return file;
}

void write_all(int file, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail(ErrorKind::kUnavailable, with_errno("the model cannot be written to " + path, errno) +
                                        ": free some space there, or use another folder with --cache");
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::uint64_t size_of(const std::string& path) noexcept {
  std::error_code ignored;
  const auto size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

// Returns whether a folder of this name is a model's, or that of a partial upload.
bool is_model(const std::string& name) {
  const std::string_view hash = std::string_view(name).substr(0, kHashDigits);
  return is_hash_text(hash) && (name.size() == kHashDigits || name.substr(kHashDigits) == kPart);
}

void add_file(transport::Sha256& sum, const std::string& path, const std::atomic<bool>& is_stopping) {
  const Fd file = open_file(path, O_RDONLY);
  std::vector<std::byte> buffer(kFileReadBytes);
  for (;;) {
    if (is_stopping)
      fail(ErrorKind::kAborted, "the server is shutting down; " + path + " will be checked when it runs again");
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kUnavailable, with_errno(path + " cannot be read", errno));
    if (count == 0) return;
    sum.add({buffer.data(), static_cast<std::size_t>(count)});
  }
}

}  // namespace

ModelCache::ModelCache(std::string folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {
  std::error_code error;
  const bool is_new = fs::create_directories(folder_, error);
  if (error) fail(ErrorKind::kUnavailable, "the cache folder " + folder_ + " cannot be created: " + error.message());
  if (is_new) fs::permissions(folder_, fs::perms::owner_all, error);
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::kUnavailable, with_errno("the cache folder " + folder_ + " cannot be written", errno));
  }
}

std::string ModelCache::path_of(const ModelHash& hash) const { return folder_ + "/" + text_of(hash); }

bool ModelCache::has(const ModelHash& hash) const {
  std::error_code ignored;
  return fs::exists(path_of(hash) + kGraph, ignored) && fs::exists(path_of(hash) + kWeights, ignored);
}

ModelCache::Model ModelCache::open(const ModelHash& hash) {
  const std::string path = path_of(hash);
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // marks it as used now
  std::ifstream file(path + kGraph, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail(ErrorKind::kUnavailable, path + kGraph + " cannot be read");
  return {std::move(text).str(), open_file(path + kWeights, O_RDONLY)};
}

// Other files in the folder are neither counted nor removed.
void ModelCache::make_room(std::uint64_t bytes) {
  struct Kept {
    fs::file_time_type used;
    fs::path path;
    std::uint64_t bytes;
  };
  std::vector<Kept> models;
  std::uint64_t total = bytes;
  std::set<std::string> parts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [hash, promised] : uploading_) {
      total += promised;
      parts.insert(text_of(hash) + kPart);
    }
  }
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_model(name) || parts.contains(name)) continue;
    std::error_code ignored;
    const std::string path = entry->path().string();
    const std::uint64_t size = std::max(kMinModelBytes, size_of(path + kGraph) + size_of(path + kWeights));
    models.push_back({entry->last_write_time(ignored), entry->path(), size});
    total += size;
  }
  std::sort(models.begin(), models.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& model : models) {
    if (total <= most_bytes_) return;
    fs::remove_all(model.path, error);  // workers that have it mapped keep their files
    if (!error) total -= model.bytes;
  }
  if (total <= most_bytes_) return;
  fail(ErrorKind::kUnavailable,
       "there is no room for the model besides those that are being uploaded: try again later");
}

void ModelCache::end_upload(const ModelHash& hash) {
  const std::lock_guard lock(mutex_);
  uploading_.erase(hash);
}

std::unique_ptr<ModelCache::Upload> ModelCache::begin(const ModelHash& hash, std::uint64_t graph_bytes,
                                                      std::uint64_t weight_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (uploading_.contains(hash)) return nullptr;
    if (graph_bytes > most_bytes_ || weight_bytes > most_bytes_ - graph_bytes) {
      fail(ErrorKind::kRefused, "the model has " + std::to_string(weight_bytes) +
                                    " bytes of weights, and this server keeps at most " + std::to_string(most_bytes_) +
                                    " bytes of models: start it with a larger --cache-size");
    }
    uploading_.emplace(hash, 0);  // keeps its own partial upload from being removed
  }
  if (has(hash)) {  // another upload may have finished since the caller checked; now none can
    end_upload(hash);
    return nullptr;
  }
  try {
    make_room(graph_bytes + weight_bytes);
    {
      const std::lock_guard lock(mutex_);
      uploading_[hash] = graph_bytes + weight_bytes;
    }
    return std::unique_ptr<Upload>(new Upload(*this, hash, graph_bytes, weight_bytes));
  } catch (...) {
    end_upload(hash);
    throw;
  }
}

ModelCache::Upload::Upload(ModelCache& cache, const ModelHash& hash, std::uint64_t graph_bytes,
                           std::uint64_t weight_bytes)
    : cache_(cache),
      hash_(hash),
      part_(cache.path_of(hash) + kPart),
      graph_bytes_(graph_bytes),
      weight_bytes_(weight_bytes) {
  std::error_code error;
  fs::create_directory(part_, error);
  if (error) fail(ErrorKind::kUnavailable, part_ + " cannot be created: " + error.message());
  has_graph_ = size_of(part_ + kGraph) == graph_bytes_ && graph_bytes_ > 0;
  weights_ = open_file(part_ + kWeights, O_RDWR | O_CREAT);
  there_ = std::min(size_of(part_ + kWeights), weight_bytes_);
}

ModelCache::Upload::~Upload() {
  std::error_code ignored;
  if (!has_graph_ && there_ == 0) fs::remove_all(part_, ignored);  // nothing has arrived that is worth keeping
  cache_.end_upload(hash_);
}

bool ModelCache::Upload::needs_graph() const noexcept { return !has_graph_; }
std::uint64_t ModelCache::Upload::weights_from() const noexcept { return there_; }

void ModelCache::Upload::add_graph(std::string_view text) {
  if (has_graph_ || text.size() != graph_bytes_) {
    fail(ErrorKind::kProtocol, "a graph of " + std::to_string(text.size()) +
                                   " bytes arrived; expected: " + (has_graph_ ? "none" : std::to_string(graph_bytes_)));
  }
  const Fd file = open_file(part_ + kGraph, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(file.get(), 0, as_byte_span(text), part_);
  has_graph_ = true;
}

void ModelCache::Upload::add_weights(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset != there_ || bytes.size() > weight_bytes_ - there_) {
    fail(ErrorKind::kProtocol, std::to_string(bytes.size()) + " bytes of weights arrived for byte " +
                                   std::to_string(offset) + "; expected: byte " + std::to_string(there_) + " of " +
                                   std::to_string(weight_bytes_));
  }
  write_all(weights_.get(), offset, bytes, part_);
  there_ += bytes.size();
}

void ModelCache::Upload::finish() {
  const Fd weights = std::move(weights_);  // closed here, because closing may wait for the disk, too
  transport::Sha256 sum;
  add_file(sum, part_ + kGraph, cache_.is_stopping_);
  add_file(sum, part_ + kWeights, cache_.is_stopping_);
  const ModelHash found = sum.finish();
  std::error_code error;
  if (found != hash_) {
    fs::remove_all(part_, error);
    fail(ErrorKind::kRefused, "the uploaded model has the hash " + text_of(found) + ", not " + text_of(hash_));
  }
  const std::string path = cache_.path_of(hash_);
  ::fsync(weights.get());  // a folder named by a hash must hold its bytes even after a crash
  ::fsync(open_file(part_ + kGraph, O_RDONLY).get());
  fs::rename(part_, path, error);
  if (error && !cache_.has(hash_)) {  // an incomplete model is in the way
    fs::remove_all(path, error);
    fs::rename(part_, path, error);
  }
  if (error && !cache_.has(hash_)) fail(ErrorKind::kUnavailable, path + " cannot be created: " + error.message());
}

}  // namespace atl::infer
