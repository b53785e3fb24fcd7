// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/error.h"
#include "atoll/infer/serve/context.h"

namespace atl::infer {

/// A model that is being uploaded from a client to the cache. Data is checked on the server's loop and written on the
/// disk's, in order, so that a slow disk delays only the client that sends. Data that has arrived is written even if
/// the client leaves; after the first part that cannot be written, none is. On the server's loop.
class IncomingModel {
 public:
  /// Called on the loop; the model may be destroyed inside.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// A part has been written, and more is to come: queued_bytes() has decreased.
    virtual void on_written(IncomingModel& model) = 0;
    /// The whole model has been written.
    virtual void on_complete(IncomingModel& model) = 0;
    /// The disk is full or has failed. The last call.
    virtual void on_unwritable(IncomingModel& model, const Error& error) = 0;
  };

  /// An upload, which is used on the disk's thread only, with its state as read there.
  struct StartedUpload {
    std::shared_ptr<ModelCache::Upload> upload{};
    bool needs_graph = false;
    std::uint64_t weights_from = 0;
  };

  IncomingModel(ServerContext& context, Owner& owner, StartedUpload started, const wire::Open& open);
  /// Releases the upload after what is queued.
  ~IncomingModel();
  IncomingModel(const IncomingModel&) = delete;
  IncomingModel& operator=(const IncomingModel&) = delete;

  /// Throws Error(kProtocol) for a graph that was not requested or has another size than announced, and for weights
  /// that do not follow the previous ones.
  void take_graph(std::string text);
  void take_weights(std::uint64_t offset, std::span<const std::byte> bytes);

  bool needs_graph() const noexcept { return !has_graph_; }
  std::uint64_t weights_from() const noexcept { return there_; }  ///< the bytes that have arrived
  bool is_complete() const noexcept;                              ///< arrived and written
  std::size_t queued_bytes() const noexcept { return queued_bytes_; }
  std::size_t queued_parts() const noexcept { return queued_parts_; }  ///< of any size
  /// The upload, for the comparison with its hash, once it is complete. Nothing can be added afterwards.
  std::shared_ptr<ModelCache::Upload> take_upload() noexcept;

 private:
  void write(std::size_t bytes, std::function<void(ModelCache::Upload&)> part);
  void on_part(std::size_t bytes, const std::optional<Error>& error);

  ServerContext& context_;
  Owner& owner_;
  const std::uint64_t graph_bytes_;
  const std::uint64_t weight_bytes_;
  std::shared_ptr<ModelCache::Upload> upload_;
  std::shared_ptr<bool> has_failed_ = std::make_shared<bool>(false);  // used on the disk's thread only
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);     // used on the loop only
  bool has_graph_ = false;
  std::uint64_t there_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t queued_parts_ = 0;
};

}  // namespace atl::infer
