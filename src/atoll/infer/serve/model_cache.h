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

/// SHA-256 of a model's graph.json followed by its weights.safetensors.
using ModelHash = wire::BundleHash;

/// Models that were sent to a server, each in a folder named by its hash, so that none is sent twice. Uploads that broke off
/// stay as parts and go on later. Files are readable by their owner alone. All of it may wait for the disk. One
/// thread at a time calls the cache, and one each upload; has() and the end of an upload may come on any.
class ModelCache {
 public:
  /// Makes the folder. `most_bytes`: of all models; the least recently used go first. Error(kUnavailable) where it cannot be
  /// written.
  ModelCache(std::string folder, std::uint64_t most_bytes);

  struct Model {
    std::string graph;  ///< its JSON text
    Fd weights;         ///< its file, for reading
  };
  bool has(const ModelHash& hash) const;
  /// Error(kUnavailable) where it cannot be read.
  Model open(const ModelHash& hash);

  /// A model on its way. Destroyed before it is finished, it leaves what has come for the next attempt.
  class Upload {
   public:
    ~Upload();
    bool needs_graph() const noexcept;
    std::uint64_t weights_from() const noexcept;  ///< up to here they are there
    bool is_complete() const noexcept;

    /// Error(kProtocol) for a graph that is there or has another size than said, and weights that do not follow what is
    /// there; kUnavailable when the disk is full.
    void add_graph(std::string_view text);
    void add_weights(std::uint64_t offset, std::span<const std::byte> bytes);

    /// Compares the hash (reads everything: seconds for large models; any thread) and puts the model where has() finds
    /// it; nothing can be added afterwards. Error(kRefused), with the part removed, where the bytes are not those of the
    /// hash.
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

  /// None while another upload of the same model goes on, and for a model that is there. Makes room by removing models that nobody has used for longest;
  /// what else lies in the folder stays.
  /// Error(kRefused) for a model larger than the cache, kUnavailable where there is no room.
  std::unique_ptr<Upload> begin(const ModelHash& hash, std::uint64_t graph_bytes, std::uint64_t weight_bytes);

  /// The end is near: Upload::finish() compares no further (kAborted), and its part stays. Any thread.
  void stop() noexcept { is_stopping_ = true; }

 private:
  std::string path_of(const ModelHash& hash) const;
  void make_room(std::uint64_t bytes);
  void end_upload(const ModelHash& hash);

  const std::string folder_;
  const std::uint64_t most_bytes_;
  std::atomic<bool> is_stopping_ = false;
  std::mutex mutex_;                              // never held while the disk is waited for
  std::map<ModelHash, std::uint64_t> uploading_;  // bytes that were promised to them
};

}  // namespace atl::infer
