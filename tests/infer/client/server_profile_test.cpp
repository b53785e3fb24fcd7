// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/server_profile.h"

#include <gtest/gtest.h>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;
using test::ScriptedServer;

class ServerProfile : public test::SessionTest {
 protected:
  ModelFiles files() const {
    Bundle made = bundle();
    return {made.hash, std::move(made.graph_text), std::move(made.weight_file)};
  }
  ClientOptions client(const std::string& address) const { return *options(address).server; }
  Profile asked(const std::string& address, const std::function<bool(const LinkStatus&)>& go_on = {}) const {
    return profile_of_server(client(address), files(), Deadline::after(20s), go_on);
  }
};

TEST_F(ServerProfile, IsWhatTheServerHasMeasured) {
  ScriptedServer server(credentials_);
  const Profile wanted = test::modelled_profile(graph_, test::Machine::kServer);
  const Profile found = asked(server.address());
  EXPECT_EQ(found.device, "scripted");
  EXPECT_EQ(found.fixed, wanted.fixed);
  EXPECT_EQ(found.per_row, wanted.per_row);
  EXPECT_EQ(found.whole, wanted.whole);
  EXPECT_EQ(found.input_tensor, wanted.input_tensor);
  EXPECT_EQ(found.dim, wanted.dim);
  EXPECT_EQ(asked(server.address()).whole, wanted.whole) << "a second time";
  EXPECT_EQ(server.count("Divide"), 0);
}

TEST_F(ServerProfile, EndsWithTheConnection) {
  for (const char* stage : {"Hello", "Open", "GraphText"}) {
    ScriptedServer server(credentials_);
    server.set({.dies_at = stage});
    EXPECT_NE(failure(ErrorKind::kPeerLost, [&] { asked(server.address()); }), "") << stage;
  }
  ScriptedServer server(credentials_);
  server.set({.silent_at = "Open"});
  ClientOptions quick = client(server.address());
  quick.silence = 400ms;
  const auto ask = [&] { profile_of_server(quick, files(), Deadline::after(20s), {}); };
  EXPECT_NE(failure(ErrorKind::kPeerLost, ask).find("silent"), std::string::npos);
}

TEST_F(ServerProfile, NobodyThereIsSaidAtOnce) {
  std::string address;
  {
    const ScriptedServer server(credentials_);
    address = server.address();
  }
  const std::string why = failure(ErrorKind::kUnavailable, [&] { asked(address); });
  EXPECT_NE(why.find(address + " cannot be reached"), std::string::npos) << why;
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { asked("nowhere"); }), "");
}

TEST_F(ServerProfile, IsWaitedForAsLongAsSomebodyWants) {
  ScriptedServer server(credentials_);
  server.set({.silent_at = "GraphText"});
  ClientOptions patient = client(server.address());
  patient.silence = 60s;
  std::string told;
  const auto not_any_more = [&](const LinkStatus& status) {
    told = status.text;
    return false;
  };
  EXPECT_NE(
      failure(ErrorKind::kAborted, [&] { profile_of_server(patient, files(), Deadline::after(60s), not_any_more); }),
      "");
  EXPECT_NE(told, "");
  const std::string why = failure(
      ErrorKind::kTimeout, [&] { profile_of_server(patient, files(), Deadline::after(std::chrono::milliseconds(1))); });
  EXPECT_NE(why.find("has not measured the model in time"), std::string::npos) << why;
}

}  // namespace
}  // namespace atl::infer
