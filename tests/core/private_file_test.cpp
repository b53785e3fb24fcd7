// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(PrivateFile, IsForItsOwnerAloneAndReplacesWhatWasThere) {
  const TemporaryFolder folder;
  const std::string path = folder.write("dump", "an older and longer text", 0666);
  write_private_file(path, "new");
  EXPECT_EQ(content_of(path), "new");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
}

TEST(PrivateFile, FollowsNoLink) {
  const TemporaryFolder folder;
  const std::string precious = folder.write("precious", "precious");
  std::filesystem::create_symlink(precious, folder.path("dump"));
  write_private_file(folder.path("dump"), "text");
  EXPECT_EQ(content_of(precious), "precious");
  EXPECT_EQ(content_of(folder.path("dump")), "text");
}

TEST(PrivateFile, SaysWhatItCannotWrite) {
  const TemporaryFolder folder;
  try {
    write_private_file(folder.path("no/such/folder"), "text");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("no/such/folder"), std::string::npos);
  }
}

}  // namespace
}  // namespace atl::test
