// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/incoming_model.h"

#include <utility>
#include <vector>

namespace atl::infer {

IncomingModel::IncomingModel(ServerContext& context, Owner& owner, StartedUpload started, const wire::Open& open)
    : context_(context),
      owner_(owner),
      graph_bytes_(open.graph_bytes),
      weight_bytes_(open.weight_bytes),
      upload_(std::move(started.upload)),
      has_graph_(!started.needs_graph),
      there_(started.weights_from) {}

IncomingModel::~IncomingModel() {
  *is_alive_ = false;
  if (upload_) context_.disk.post([upload = std::move(upload_)]() mutable { upload.reset(); });
}

bool IncomingModel::is_complete() const noexcept { return has_graph_ && there_ == weight_bytes_ && queued_parts_ == 0; }

std::shared_ptr<ModelCache::Upload> IncomingModel::take_upload() noexcept { return std::move(upload_); }

void IncomingModel::take_graph(std::string text) {
  if (has_graph_ || text.size() != graph_bytes_) {
    throw Error(ErrorKind::kProtocol, "a graph of " + std::to_string(text.size()) + " bytes arrived; expected: " +
                                          (has_graph_ ? "none" : std::to_string(graph_bytes_)));
  }
  has_graph_ = true;
  const std::size_t size = text.size();
  write(size, [text = std::move(text)](ModelCache::Upload& upload) { upload.add_graph(text); });
}

void IncomingModel::take_weights(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset != there_ || bytes.size() > weight_bytes_ - there_) {
    throw Error(ErrorKind::kProtocol, std::to_string(bytes.size()) + " bytes of weights arrived for byte " +
                                          std::to_string(offset) + "; expected: byte " + std::to_string(there_) +
                                          " of " + std::to_string(weight_bytes_));
  }
  there_ += bytes.size();
  write(bytes.size(), [offset, copy = std::vector<std::byte>(bytes.begin(), bytes.end())](ModelCache::Upload& upload) {
    upload.add_weights(offset, copy);
  });
}

void IncomingModel::write(std::size_t bytes, std::function<void(ModelCache::Upload&)> part) {
  queued_bytes_ += bytes;
  ++queued_parts_;
  context_.queued_for_disk += bytes;
  context_.disk.post([this, bytes, part = std::move(part), upload = upload_, failed = has_failed_, alive = is_alive_,
                      &context = context_]() mutable {
    std::optional<Error> error;
    try {
      if (!*failed) part(*upload);
    } catch (const Error& thrown) {
      error = thrown;
    } catch (const std::exception& thrown) {
      error = Error(ErrorKind::kInternal, thrown.what());
    }
    if (error) *failed = true;
    part = nullptr;
    upload.reset();  // released before another upload of this model may start
    context.loop.post([this, bytes, error, alive, &context] {
      context.queued_for_disk -= bytes;
      if (*alive) on_part(bytes, error);
    });
  });
}

void IncomingModel::on_part(std::size_t bytes, const std::optional<Error>& error) {
  queued_bytes_ -= bytes;
  --queued_parts_;
  if (error) {
    *is_alive_ = false;
    return owner_.on_unwritable(*this, *error);
  }
  if (is_complete()) return owner_.on_complete(*this);
  owner_.on_written(*this);
}

}  // namespace atl::infer
