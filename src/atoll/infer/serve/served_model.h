// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "atoll/infer/serve/context.h"
#include "atoll/infer/serve/incoming_model.h"
#include "atoll/infer/serve/worker_process.h"

namespace atl::infer {

/// One model of one client: its upload, its worker process and its current inference. On the server's loop.
class ServedModel : public WorkerProcess::Owner, private IncomingModel::Owner {
 public:
  /// The client's connection.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void send(const wire::Message& message) = 0;
    /// Sends a copy of a frame that the worker process made.
    virtual void forward(std::span<const std::byte> frame) = 0;
    /// Sends a frame whose payload stays where it is; `owner` ends when it has been sent.
    virtual void forward(const wire::FrameHeader& header, std::span<const std::byte> payload,
                         std::shared_ptr<const void> owner) = 0;
    /// Returns whether it may be on this host, and understands Offer.
    virtual bool may_map_memory() const = 0;
    virtual std::size_t queued_bytes() const = 0;
    /// Called when the worker or the disk cannot keep up, and when it can again.
    virtual void pause() = 0;
    virtual void resume() = 0;
  };

  ServedModel(ServerContext& context, Client& client, const wire::Open& open);
  ~ServedModel() override;
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  /// Looks for the model in the cache; then requests what is missing, starts the worker, or waits. Called again when
  /// something has become free.
  void begin();
  // Messages from the client. They throw Error(kProtocol) for messages that do not belong to this state.
  void take(const wire::GraphText& text);
  void take_weights(std::uint64_t offset, std::span<const std::byte> bytes);
  void take(const wire::Divide& divide);
  void take(const wire::Run& run);
  void take(const wire::Cancel& cancel);
  void take(const wire::Mapped& mapped);
  void take_rows(const wire::ReceivedFrame& frame);
  /// Returns where the payload of a frame of rows is best assembled; empty: anywhere.
  wire::FrameParser::Place place_for(const wire::FrameHeader& header);

  /// The turn that was requested begins.
  void on_turn();
  /// The inference has computed for too long.
  void on_overrun();
  void on_tick(Clock::time_point now);

  std::uint64_t inference() const noexcept { return inference_; }  ///< the current one; 0: none

 private:
  enum class State { kWaiting, kLooking, kUploading, kHashing, kOpening, kStarting, kReady, kDead };
  // The result of a task on the disk's thread.
  struct Found {
    std::optional<Error> error{};
    bool is_there = false;
    IncomingModel::StartedUpload started{};
    ModelCache::Model model{};
  };

  void on_frame(const wire::ReceivedFrame& frame) override;
  void on_drained() override { resume_client(); }
  void on_lost(const Error& error) override;
  void on_written(IncomingModel& model) override;
  void on_complete(IncomingModel& model) override;
  void on_unwritable(IncomingModel& model, const Error& error) override;

  void query_disk(void (*query)(ModelCache& cache, const wire::Open& open, Found& found),
                  void (ServedModel::*then)(Found& found));
  void on_looked(Found& found);
  void on_opened(Found& found);
  void begin_upload(IncomingModel::StartedUpload started);
  void arrived();
  void resume_client();
  void on_hashed(const std::optional<Error>& error);
  void watch_arrival(Clock::time_point now);
  void watch_worker(Clock::time_point now);
  void lose_worker(const char* what, std::chrono::milliseconds limit);
  void start_worker(const ModelCache::Model& model);
  void take_from_worker(const wire::Message& message);
  void offer_memory();
  void forward_rows(const wire::ReceivedFrame& frame);
  void wait_for(const char* why);
  void tell_queued(std::size_t ahead, const char* why);
  void on_division();
  void end_inference();
  void die(const Error& error);
  void expect(State state, const char* what) const;
  void forward(const wire::Message& message);
  void pause_client();

  ServerContext& context_;
  Client& client_;
  const wire::Open open_;
  State state_ = State::kWaiting;
  std::unique_ptr<IncomingModel> incoming_;
  std::unique_ptr<WorkerProcess> worker_;
  std::shared_ptr<const wire::Ready> timed_;  // by an earlier worker process; null: this one times the model
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  // checked by tasks that return from other threads
  std::uint64_t freed_ = 0;                                        // ServerContext::freed when the disk was queried
  Clock::time_point asked_{};                                      // when the disk was queried
  Clock::time_point started_{};
  Clock::time_point progressed_{};  // when the upload last progressed
  Clock::time_point pinged_{};      // while the client is paused
  Clock::time_point took_{};        // when the worker was last seen to take something, while the client is paused
  std::uint64_t taken_bytes_ = 0;   // by the worker at that time
  int divides_ = 0;                 // unanswered
  Clock::time_point preparing_{};   // since when the first of them is prepared
  std::optional<Clock::time_point> cancelled_;  // when the current inference was
  std::uint64_t inference_ = 0;
  bool is_paused_ = false;
  std::optional<Ticket> ticket_;  // of the memory that was offered; from then on only the client puts payloads into it
  bool is_mapped_ = false;        // by the client, which takes lent frames
  std::shared_ptr<std::size_t> unsent_lent_ = std::make_shared<std::size_t>(0);  // bytes of the worker's memory
};

}  // namespace atl::infer
