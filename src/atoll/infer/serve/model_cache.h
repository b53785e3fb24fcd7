// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// The SHA-256 of a model's graph.json followed by its weights.safetensors.
using ModelHash = wire::BundleHash;

/// The models that were uploaded to a server, each in a folder named by its hash, so that none is uploaded twice.
/// Interrupted uploads are kept and resumed later. Files are readable only by their owner. Every call may wait for the
/// disk. One thread at a time calls the cache, and one each upload; has() and the end of an upload may come on any
/// thread.
class ModelCache {
 public:
  /// Creates the folder. `most_bytes`: of all models; the least recently used are removed first. Throws
  /// Error(kUnavailable) if the folder cannot be written.
  ModelCache(std::string folder, std::uint64_t most_bytes);

  struct Model {
    std::string graph;  ///< its JSON text
    Fd weights;         ///< the weight file, for reading
  };
  bool has(const ModelHash& hash) const;
  /// Opens a model. Throws Error(kUnavailable) if it cannot be read.
  Model open(const ModelHash& hash);

  /// A model that is being uploaded. If destroyed before it is finished, it leaves what has arrived for the next
  /// attempt.
  class Upload {
   public:
    ~Upload();
    bool needs_graph() const noexcept;
    std::uint64_t weights_from() const noexcept;  ///< the bytes that have arrived

    /// Throw Error(kProtocol) for a graph that was not requested or has another size than announced, and for weights
    /// that do not follow the previous ones; kUnavailable when the disk is full.
    void add_graph(std::string_view text);
    void add_weights(std::uint64_t offset, std::span<const std::byte> bytes);

    /// Checks the hash, which reads everything and takes seconds for large models, and adds the model to the cache. Any
    /// thread; nothing can be added afterwards. If the hash does not match, removes the upload and throws
    /// Error(kRefused).
    void finish();

   private:
    friend class ModelCache;
    Upload(ModelCache& cache, const ModelHash& hash, std::uint64_t graph_bytes, std::uint64_t weight_bytes);
    ModelCache& cache_;
    const ModelHash hash_;
    const std::string part_;
    const std::uint64_t graph_bytes_;
    const std::uint64_t weight_bytes_;
    bool has_graph_ = false;
    std::uint64_t there_ = 0;
    Fd weights_;
  };

  /// Begins an upload. None while another upload of the same model is in progress, and for a model that exists. Makes
  /// room by removing the least recently used models; other files in the folder stay. Throws Error(kRefused) for a
  /// model larger than the cache, kUnavailable if there is no room.
  std::unique_ptr<Upload> begin(const ModelHash& hash, std::uint64_t graph_bytes, std::uint64_t weight_bytes);

  /// Stops Upload::finish(), which throws Error(kAborted) and keeps the upload. Any thread.
  void stop() noexcept { is_stopping_ = true; }

 private:
  std::string path_of(const ModelHash& hash) const;
  void make_room(std::uint64_t bytes);
  void end_upload(const ModelHash& hash);

  const std::string folder_;
  const std::uint64_t most_bytes_;
  std::atomic<bool> is_stopping_ = false;
  std::mutex mutex_;                              // never held while waiting for the disk
  std::map<ModelHash, std::uint64_t> uploading_;  // bytes that are reserved for them
};

}  // namespace atl::infer
