// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "atoll/infer/wire/messages.h"
#include "tests/infer/infer_cases.h"

namespace atl::infer::test {

using ByteVector = std::vector<std::byte>;

inline ByteVector random_bytes(Dice& dice, std::size_t count) {
  ByteVector bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.integer(0, 255));
  return bytes;
}

/// A few bytes or bits of `bytes` changed, inserted, repeated or left out.
inline ByteVector mutated(Dice& dice, ByteVector bytes) {
  for (std::int64_t changes = dice.integer(1, 4); changes > 0 && !bytes.empty(); --changes) {
    const std::int64_t at = dice.integer(0, static_cast<std::int64_t>(bytes.size()) - 1);
    std::byte& byte = bytes[static_cast<std::size_t>(at)];
    switch (dice.integer(0, 5)) {
      case 0: byte = static_cast<std::byte>(dice.integer(0, 255)); break;
      case 1: byte ^= static_cast<std::byte>(1 << dice.integer(0, 7)); break;
      case 2: byte = std::byte{0xff}; break;
      case 3: bytes.erase(bytes.begin() + at); break;
      case 4: bytes.insert(bytes.begin() + at, static_cast<std::size_t>(dice.integer(1, 20)), byte); break;
      default: bytes.resize(static_cast<std::size_t>(at)); break;
    }
  }
  return bytes;
}

/// One of every message, no field of which has its default.
inline std::vector<wire::Message> every_message() {
  using namespace wire;
  BundleHash hash;
  for (std::size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<std::byte>(200 + i);
  std::array<std::byte, 16> ticket;
  for (std::size_t i = 0; i < ticket.size(); ++i) ticket[i] = static_cast<std::byte>(100 + i);
  const std::uint64_t model = 0x0102030405060708;
  return {Hello{"atoll 0.1.0", "robot 7", 5, 40'000},
          Welcome{"atoll 0.1.0", "cuda:0", std::uint64_t{1} << 34, 8, 3, "höflich", 6},
          Open{model, hash, 1000, std::uint64_t{5} << 32},
          Need{model, true, 77},
          GraphText{model, "{\"atoll_graph\": 1}"},
          Queued{model, 2, "two workers run"},
          Ready{model, "cpu", {1e-6, 0, 2.5}, {0, 1e-9, 3}, {1e-6, 1e-3, 7}, 4, 2},
          Divide{model, 9, {4, 2, {{{0, 10}, {10, 20}}, {{0, 0}, {0, 1}}}, 8}, Codec::kHalf},
          wire::Divided{model, 9},
          Run{model, 5, 9, 100'000},
          Done{5, 1, 2, 3, {4, 0.5, 2.25, 70'000}},
          Cancel{5},
          Ack{5, 6, 7, 800'000, 900, 400},
          Ping{11},
          Pong{12, {1, 1, 0.125, 9}},
          Failed{model, 5, ErrorKind::kMismatch, "division 9 is not known"},
          Draining{"the server goes down"},
          Close{model},
          Bye{},
          Turn{Turn::What::kOver},
          Offer{model, ticket, {std::byte{9}}},
          Mapped{model}};
}

}  // namespace atl::infer::test
