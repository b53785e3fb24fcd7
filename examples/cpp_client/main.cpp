// SPDX-License-Identifier: Apache-2.0
// client BUNDLE [SERVER KEY_FILE]: runs a model of `atoll export` ten times, with the help of an `atoll serve` if one
// is given.
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "atoll/infer/session/session.h"
#include "atoll/pytorch/aten/operator_runner.h"

int main(int count, char** arguments) try {
  if (count != 2 && count != 4) {
    std::fprintf(stderr, "usage: client BUNDLE [HOST:PORT KEY_FILE]\n");
    return 2;
  }
  atl::infer::SessionOptions options;
  options.deadline = std::chrono::milliseconds(500);
  if (count == 4) {
    atl::infer::ClientOptions server;
    server.server = arguments[2];
    server.credentials = atl::transport::Credentials::of_key_file(arguments[3]);
    server.name = "the example in C++";
    options.server = server;
  }
  atl::infer::Session session(options, atl::infer::load_bundle(arguments[1]),
                              atl::pytorch::make_operator_runner("cpu"));
  if (count == 4) session.wait_until_ready(atl::Deadline::after(std::chrono::seconds(60)));

  std::vector<atl::infer::HostBytes> inputs;
  for (const int input : session.graph().inputs) {
    const auto bytes = session.graph().tensors[static_cast<std::size_t>(input)].bytes();
    const auto zeros = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
    inputs.push_back({*zeros, zeros});
  }
  for (int i = 0; i < 10; ++i) {
    const atl::infer::Outcome outcome = session.run(inputs);
    std::printf("%s (plan %s): %zu bytes in %.1f ms\n", to_string(outcome.origin), outcome.plan.c_str(),
                outcome.outputs.front().bytes.size(), 1000 * outcome.seconds);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
