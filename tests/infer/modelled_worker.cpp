// SPDX-License-Identifier: Apache-2.0
// modelled_worker DEVICE THREADS BYTES SECONDS: serves a modelled graph for infer/serve. DEVICE selects the behaviour:
// a number is the speed (0: layers take no time); "crash" dies in the first inference, "babble" sends bytes that do not
// parse, "spin" computes forever, "slow-start" never gets ready, "freeze" is stopped by a signal once it is ready.
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/infer/link/worker_descriptors.h"
#include "atoll/infer/worker/worker.h"
#include "tests/support/modelled_runner.h"

namespace {

using atl::infer::test::Machine;
using atl::infer::test::ModelledRunner;

class Misbehaving : public ModelledRunner {
 public:
  explicit Misbehaving(std::string how) : ModelledRunner(Machine::kServer, 0), how_(std::move(how)) {}

  std::vector<atl::infer::Value> run(const atl::infer::Call& call, std::span<const atl::infer::Value> operands,
                                     std::span<const atl::infer::Change> changes) override {
    if (is_serving_) misbehave();
    return ModelledRunner::run(call, operands, changes);
  }
  void serve() { is_serving_ = true; }

 private:
  void misbehave() const {
    if (how_ == "crash") std::abort();
    if (how_ == "spin") {
      for (;;) std::this_thread::yield();
    }
    if (how_ == "babble") {
      const std::string nonsense(1000, 'x');
      ::send(atl::infer::kFirstWorkerDescriptor, nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    }
  }

  const std::string how_;
  bool is_serving_ = false;
};

}  // namespace

int main(int, char** words) {
  const std::string device = words[1];
  atl::infer::WorkerOptions options;
  options.profile_seconds = std::min(0.01, std::stod(words[4]));
  options.admits_everything = true;
  std::shared_ptr<ModelledRunner> runner;
  const bool is_speed = device.find_first_not_of("0123456789.") == std::string::npos;
  if (is_speed) {
    runner = std::make_shared<ModelledRunner>(Machine::kServer, std::stod(device));
  } else {
    auto bad = std::make_shared<Misbehaving>(device);
    options.on_ready = [bad, freezes = device == "freeze"] {
      if (freezes) ::raise(SIGSTOP);
      bad->serve();
    };
    runner = bad;
  }
  if (device == "slow-start") {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  try {
    return atl::infer::run_worker(runner, options);
  } catch (const atl::Error&) {
    return 1;
  }
}
