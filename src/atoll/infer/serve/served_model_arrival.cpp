// SPDX-License-Identifier: Apache-2.0
// A served model's path from the cache or its client to the start of its worker process.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "atoll/infer/serve/served_model.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxQueuedForDisk = std::size_t{1} << 20;  // of one client, which has to wait beyond this
constexpr std::size_t kMaxQueuedByAll = std::size_t{64} << 20;
constexpr std::size_t kMaxPartsForDisk = 256;  // of one client: each part takes memory besides its bytes

}  // namespace

// The disk may be slow, so its result is posted back to the loop.
void ServedModel::query_disk(void (*query)(ModelCache& cache, const wire::Open& open, Found& found),
                             void (ServedModel::*then)(Found& found)) {
  context_.disk.post([this, query, then, open = open_, alive = is_alive_, &context = context_] {
    const auto found = std::make_shared<Found>();
    try {
      query(context.cache, open, *found);
    } catch (const Error& error) {
      found->error = error;
    } catch (const std::exception& error) {
      found->error = Error(ErrorKind::kInternal, error.what());
    }
    context.loop.post([this, then, found, alive, &context] {
      if (*alive && state_ != State::kDead) return (this->*then)(*found);
      if (!found->started.upload) return;
      found->started.upload.reset();  // other clients may wait for it
      context.retry_waiting();
    });
  });
}

void ServedModel::begin() {
  state_ = State::kLooking;
  asked_ = Clock::now();
  freed_ = context_.freed;
  const auto look = [](ModelCache& cache, const wire::Open& open, Found& found) {
    found.is_there = cache.has(open.hash);
    if (found.is_there) return;
    found.started.upload = cache.begin(open.hash, open.graph_bytes, open.weight_bytes);
    found.is_there = !found.started.upload && cache.has(open.hash);
    if (!found.started.upload) return;
    found.started.needs_graph = found.started.upload->needs_graph();
    found.started.weights_from = found.started.upload->weights_from();
  };
  query_disk(look, &ServedModel::on_looked);
}

void ServedModel::on_looked(Found& found) {
  if (found.error) return die(*found.error);
  if (found.started.upload) return begin_upload(std::move(found.started));
  if (!found.is_there) {
    if (freed_ != context_.freed) return begin();  // something has become free in the meantime
    return wait_for("another robot is uploading this model");
  }
  if (context_.with_worker.size() >= context_.options.most_workers) {
    return wait_for("the server runs its maximum number of models");
  }
  state_ = State::kOpening;
  asked_ = Clock::now();
  context_.with_worker.insert(this);
  std::erase(context_.waiting, this);
  const auto fetch = [](ModelCache& cache, const wire::Open& open, Found& fetched) {
    fetched.model = cache.open(open.hash);
  };
  query_disk(fetch, &ServedModel::on_opened);
}

void ServedModel::on_opened(Found& found) {
  if (found.error) return die(*found.error);
  try {
    start_worker(found.model);
  } catch (const Error& error) {
    die(error);
  } catch (const std::exception& error) {
    die(Error(ErrorKind::kInternal, error.what()));
  }
}

void ServedModel::begin_upload(IncomingModel::StartedUpload started) {
  state_ = State::kUploading;
  std::erase(context_.waiting, this);
  progressed_ = Clock::now();
  IncomingModel::Owner& self = *this;
  incoming_ = std::make_unique<IncomingModel>(context_, self, std::move(started), open_);
  if (incoming_->is_complete()) return on_complete(*incoming_);
  client_.send(wire::Need{open_.model, incoming_->needs_graph(), incoming_->weights_from()});
}

void ServedModel::wait_for(const char* why) {
  state_ = State::kWaiting;
  auto place = std::find(context_.waiting.begin(), context_.waiting.end(), this);
  if (place == context_.waiting.end()) place = context_.waiting.insert(place, this);
  tell_queued(static_cast<std::size_t>(place - context_.waiting.begin()), why);
}

void ServedModel::tell_queued(std::size_t ahead, const char* why) {
  client_.send(wire::Queued{open_.model, static_cast<std::uint32_t>(ahead), why});
}

void ServedModel::take(const wire::GraphText& text) {
  if (state_ == State::kDead) return;  // the client does not know yet
  expect(State::kUploading, "a graph");
  incoming_->take_graph(text.text);
  arrived();
}

void ServedModel::take_weights(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (state_ == State::kDead) return;
  expect(State::kUploading, "weights");
  incoming_->take_weights(offset, bytes);
  arrived();
}

void ServedModel::arrived() {
  progressed_ = Clock::now();
  const bool is_too_much = incoming_->queued_bytes() > kMaxQueuedForDisk ||
                           incoming_->queued_parts() > kMaxPartsForDisk || context_.queued_for_disk > kMaxQueuedByAll;
  if (!is_too_much || std::exchange(is_paused_, true)) return;
  pinged_ = progressed_;
  client_.pause();
}

void ServedModel::on_written(IncomingModel& model) {
  progressed_ = Clock::now();
  if (model.queued_parts() == 0) resume_client();
}

// A full disk is not the client's fault, so its other models continue.
void ServedModel::on_unwritable(IncomingModel&, const Error& error) { die(error); }

void ServedModel::on_complete(IncomingModel& model) {
  state_ = State::kHashing;
  resume_client();
  std::shared_ptr<ModelCache::Upload> upload = model.take_upload();
  incoming_.reset();
  context_.hashing.post([this, upload = std::move(upload), alive = is_alive_, &context = context_]() mutable {
    std::optional<Error> failed;
    try {
      upload->finish();
    } catch (const Error& error) {
      failed = error;
    } catch (const std::exception& error) {
      failed = Error(ErrorKind::kInternal, error.what());
    }
    upload.reset();
    // Models that wait for it may continue, whichever client sent it.
    context.loop.post([this, &context, alive, failed] {
      if (*alive) return on_hashed(failed);
      context.retry_waiting();
    });
  });
}

void ServedModel::on_hashed(const std::optional<Error>& error) {
  context_.retry_waiting_later();
  if (error) return die(*error);
  ++context_.counts.uploads;
  begin();
}

void ServedModel::watch_arrival(Clock::time_point now) {
  const ServerOptions& options = context_.options;
  const bool waits_for_disk = state_ == State::kLooking || state_ == State::kOpening;
  if (waits_for_disk && now - asked_ > options.start_limit) {
    return die(Error(ErrorKind::kTimeout,
                     "the server's disk has not answered for " + std::to_string(options.start_limit.count()) + " ms"));
  }
  if (state_ != State::kUploading || now - progressed_ <= options.upload_limit) return;
  const char* what = incoming_->queued_bytes() > 0 ? "could be written to the server's disk" : "has arrived";
  die(Error(ErrorKind::kTimeout, std::string("nothing of the model ") + what + " for " +
                                     std::to_string(options.upload_limit.count()) + " ms"));
}

void ServedModel::start_worker(const ModelCache::Model& model) {
  const ServerOptions& options = context_.options;
  const off_t size = ::lseek(model.weights.get(), 0, SEEK_END);
  if (size < 0 || static_cast<std::uint64_t>(size) != open_.weight_bytes) {
    throw Error(ErrorKind::kRefused, "the weights of this model have " + std::to_string(size) + " bytes, not " +
                                         std::to_string(open_.weight_bytes));
  }
  WorkerCommand command;
  command.program = options.worker_program;
  command.device = options.device;
  command.threads = options.threads;
  command.memory_bytes = options.worker_memory_bytes == 0 ? 0 : options.worker_memory_bytes + open_.weight_bytes;
  timed_ = context_.profiles.find(open_.hash);
  if (timed_) command.profile_seconds = 0;
  worker_ = std::make_unique<WorkerProcess>(context_.loop, *this, command, model.weights);
  state_ = State::kStarting;
  started_ = Clock::now();
  worker_->send(open_);
  worker_->send(wire::GraphText{open_.model, model.graph});
}

}  // namespace atl::infer
