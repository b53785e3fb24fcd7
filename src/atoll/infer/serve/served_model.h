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

/// One model of one client: its upload, its worker process, and the inference at hand. On the server's loop.
class ServedModel : public WorkerProcess::Owner, private IncomingModel::Owner {
 public:
  /// The client's connection.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void send(const wire::Message& message) = 0;
    virtual void send(const wire::FrameHeader& header, std::span<const std::byte> payload) = 0;
    virtual std::size_t queued_bytes() const = 0;
    /// The worker or the disk cannot keep up; and it can again.
    virtual void pause() = 0;
    virtual void resume() = 0;
  };

  ServedModel(ServerContext& context, Client& client, const wire::Open& open);
  ~ServedModel() override;
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  /// Looks for the model in the cache; asks for what is missing, or starts the worker, or waits.
  void begin();
  /// Something has become free.
  void retry() { begin(); }
  // From the client. Error(kProtocol) for what does not belong to this state.
  void take(const wire::GraphText& text);
  void take_weights(std::uint64_t offset, std::span<const std::byte> bytes);
  void take(const wire::Divide& divide);
  void take(const wire::Run& run);
  void take(const wire::Cancel& cancel);
  void take(const wire::Ack& ack);
  void take_rows(const wire::FrameHeader& header, std::span<const std::byte> payload);

  /// The turn that was asked for has come.
  void on_turn();
  /// It has computed for too long.
  void on_overrun();
  void on_tick(Clock::time_point now);

  std::uint64_t inference() const noexcept { return inference_; }  ///< at hand; 0: none
  std::uint64_t last_inference() const noexcept { return last_inference_; }

 private:
  enum class State { kWaiting, kLooking, kUploading, kHashing, kOpening, kStarting, kReady, kDead };
  // What the disk's thread has found.
  struct Found {
    std::optional<Error> error{};
    bool is_there = false;
    IncomingModel::Begun begun{};
    ModelCache::Model model{};
  };

  void on_frame(WorkerProcess& worker, const wire::FrameHeader& header, std::span<const std::byte> payload) override;
  void on_taken(WorkerProcess& worker) override;
  void on_ended(WorkerProcess& worker, const Error& error) override;
  void on_written(IncomingModel& model) override;
  void on_complete(IncomingModel& model) override;
  void on_unwritable(IncomingModel& model, const Error& error) override;

  void ask_disk(void (*ask)(ModelCache& cache, const wire::Open& open, Found& found),
                void (ServedModel::*then)(Found& found));
  void on_looked(Found& found);
  void on_opened(Found& found);
  void begin_upload(IncomingModel::Begun begun);
  void arrived();
  void let_client_go_on();
  void on_hashed(const std::optional<Error>& error);
  void watch_arrival(Clock::time_point now);
  void watch_worker(Clock::time_point now);
  void lose_worker(const char* what, std::chrono::milliseconds limit);
  void start_worker(const ModelCache::Model& model);
  void take_from_worker(const wire::Message& message);
  void wait_for(std::string why);
  void on_division();
  void end_inference();
  void die(const Error& error);
  void expect(State state, const char* what) const;
  void forward(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void forward(const wire::Message& message);
  void hold_client();

  ServerContext& context_;
  Client& client_;
  const wire::Open open_;
  State state_ = State::kWaiting;
  std::unique_ptr<IncomingModel> incoming_;
  std::unique_ptr<WorkerProcess> worker_;
  std::shared_ptr<const wire::Ready> timed_;  // by an earlier worker process; this one does not time the model
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  // for what comes back from other threads
  std::uint64_t freed_ = 0;                                        // ServerContext::freed when the disk was asked
  Clock::time_point asked_{};                                      // the disk
  Clock::time_point started_{};
  Clock::time_point progressed_{};  // the upload
  Clock::time_point pinged_{};      // while the client is not read
  Clock::time_point took_{};        // when the worker was last seen to take something, while the client is not read
  std::uint64_t taken_bytes_ = 0;   // by then
  int divides_ = 0;                 // without an answer
  Clock::time_point preparing_{};   // the first of them, since
  std::optional<Clock::time_point> cancelled_;  // the inference at hand
  std::uint64_t inference_ = 0;
  std::uint64_t last_inference_ = 0;
  bool is_paused_ = false;
};

}  // namespace atl::infer
