// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/credentials.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include "atoll/core/bytes.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/stream/certificates.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using namespace transport;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void expect_error(ErrorKind kind, const std::string& part, const std::function<void()>& action) {
  const Error error = error_of(action);
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(contains(error, part)) << error.what();
}

TEST(Key, HasAtLeastSixteenBytes) {
  EXPECT_NE(Credentials::of_key(std::vector<std::byte>(16)), nullptr);
  EXPECT_NE(Credentials::of_key(std::vector<std::byte>(kMaxKeyBytes)), nullptr);
  expect_error(ErrorKind::kInvalidArgument, "15 bytes", [] { Credentials::of_key(std::vector<std::byte>(15)); });
  expect_error(ErrorKind::kInvalidArgument, "0 bytes", [] { Credentials::of_key({}); });
}

TEST(KeyFile, IsReadWithoutItsLineEnd) {
  const TemporaryFolder folder;
  const std::string key = "0123456789abcdef";
  EXPECT_EQ(text_of(read_key_file(folder.write("plain", key))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("line", key + "\n"))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("windows", key + "\r\n"))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("two-lines", key + "\n\r\n"))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("carriage-return", key + "\r"))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("blank", key + " \n"))), key + " ");
  const std::string binary = key + std::string("\0\xff\0", 3);
  EXPECT_EQ(text_of(read_key_file(folder.write("binary", binary))), binary);
  EXPECT_NE(Credentials::of_key_file(folder.path("line")), nullptr);
}

TEST(KeyFile, HasARangeOfLengths) {
  const TemporaryFolder folder;
  const std::string longest(kMaxKeyBytes, 'k');
  EXPECT_EQ(text_of(read_key_file(folder.write("longest", longest + "\r\n"))), longest);
  expect_error(ErrorKind::kInvalidArgument, "more than 4096",
               [&] { read_key_file(folder.write("long", longest + "k")); });
  expect_error(ErrorKind::kInvalidArgument, "15 bytes",
               [&] { read_key_file(folder.write("short", std::string(15, 'k') + "\n")); });
  expect_error(ErrorKind::kInvalidArgument, "0 bytes", [&] { read_key_file(folder.write("empty", "")); });
  expect_error(ErrorKind::kInvalidArgument, "15 bytes",
               [&] { Credentials::of_key_file(folder.write("short", std::string(15, 'k'))); });
}

TEST(KeyFile, BelongsToItsOwnerAlone) {
  const TemporaryFolder folder;
  const std::string key(32, 'k');
  EXPECT_EQ(text_of(read_key_file(folder.write("strict", key, 0600))), key);
  EXPECT_EQ(text_of(read_key_file(folder.write("stricter", key, 0400))), key);
  for (const unsigned mode : {0640U, 0620U, 0604U, 0602U, 0610U, 0601U, 0444U, 0644U}) {
    const std::string path = folder.write("open" + std::to_string(mode), key, mode);
    expect_error(ErrorKind::kInvalidArgument, "chmod 600", [&] { read_key_file(path); });
    expect_error(ErrorKind::kInvalidArgument, path, [&] { Credentials::of_key_file(path); });
  }
}

TEST(KeyFile, SaysWhatCannotBeRead) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kUnavailable, "No such file", [&] { read_key_file(folder.path("missing")); });
  expect_error(ErrorKind::kUnavailable, folder.path("missing"), [&] { read_key_file(folder.path("missing")); });
  expect_error(ErrorKind::kUnavailable, "is a folder", [&] { read_key_file(folder.path("")); });
}

TEST(KeyFile, IsMadeForItsOwner) {
  const TemporaryFolder folder;
  const std::string path = folder.path("key");
  make_key_file(path);
  const auto key = read_key_file(path);
  EXPECT_EQ(key.size(), 64U);
  EXPECT_EQ(text_of(key).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(content_of(path), text_of(key) + "\n");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  make_key_file(folder.path("other"));
  EXPECT_NE(read_key_file(folder.path("other")), key);
}

TEST(KeyFile, IsNeverOverwritten) {
  const TemporaryFolder folder;
  const std::string path = folder.write("key", "what was there");
  expect_error(ErrorKind::kInvalidArgument, "already exists", [&] { make_key_file(path); });
  EXPECT_EQ(content_of(path), "what was there");
  const std::string link = folder.path("link");
  std::filesystem::create_symlink(folder.path("nowhere"), link);
  expect_error(ErrorKind::kInvalidArgument, "already exists", [&] { make_key_file(link); });
  EXPECT_FALSE(std::filesystem::exists(folder.path("nowhere")));
  expect_error(ErrorKind::kUnavailable, "No such file", [&] { make_key_file(folder.path("no/such/folder")); });
}

class CertificateFilesTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Credentials> load(const std::string& chain, const std::string& key,
                                          const std::string& authorities) {
    return Credentials::of_certificates(folder_.path(chain), folder_.path(key), folder_.path(authorities));
  }
  void SetUp() override {
    const auto mine = authority_.issue({.name = "mine", .alternatives = ""});
    const auto other = authority_.issue({.name = "other", .alternatives = ""});
    folder_.write("chain", mine.chain + authority_.pem());
    folder_.write("key", mine.key);
    folder_.write("other-key", other.key);
    folder_.write("authorities", authority_.pem() + Authority("another").pem());
    folder_.write("garbage", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n");
    folder_.write("empty", "");
  }

  Authority authority_{"authority"};
  TemporaryFolder folder_;
};

TEST_F(CertificateFilesTest, AreLoaded) { EXPECT_NE(load("chain", "key", "authorities"), nullptr); }

TEST_F(CertificateFilesTest, MustExist) {
  expect_error(ErrorKind::kUnavailable, folder_.path("none"), [&] { load("none", "key", "authorities"); });
  expect_error(ErrorKind::kUnavailable, folder_.path("none"), [&] { load("chain", "none", "authorities"); });
  expect_error(ErrorKind::kUnavailable, folder_.path("none"), [&] { load("chain", "key", "none"); });
}

TEST_F(CertificateFilesTest, MustHoldWhatTheyAreFor) {
  for (const char* const wrong : {"garbage", "empty", "key"}) {
    expect_error(ErrorKind::kInvalidArgument, folder_.path(wrong), [&] { load(wrong, "key", "authorities"); });
    expect_error(ErrorKind::kInvalidArgument, folder_.path(wrong), [&] { load("chain", "key", wrong); });
  }
  expect_error(ErrorKind::kInvalidArgument, folder_.path("garbage"), [&] { load("chain", "garbage", "authorities"); });
  expect_error(ErrorKind::kInvalidArgument, folder_.path("chain"), [&] { load("chain", "chain", "authorities"); });
}

TEST_F(CertificateFilesTest, TheKeyBelongsToItsOwnerAlone) {
  const auto mine = authority_.issue({.name = "mine", .alternatives = ""});
  folder_.write("open-chain", mine.chain);
  folder_.write("open-key", mine.key, 0644);
  expect_error(ErrorKind::kInvalidArgument, "chmod 600 " + folder_.path("open-key"),
               [&] { load("open-chain", "open-key", "authorities"); });
}

TEST_F(CertificateFilesTest, MustBelongTogether) {
  expect_error(ErrorKind::kInvalidArgument, folder_.path("other-key"),
               [&] { load("chain", "other-key", "authorities"); });
}

TEST_F(CertificateFilesTest, AskForNoPassword) {
  const auto key = make_private_key();
  const std::string encrypted = pem_of([&](BIO* bio) {
    const auto* const password = reinterpret_cast<const unsigned char*>("secret");
    return PEM_write_bio_PrivateKey(bio, key.get(), EVP_aes_128_cbc(), password, 6, nullptr, nullptr);
  });
  folder_.write("encrypted", encrypted);
  expect_error(ErrorKind::kInvalidArgument, "without a password", [&] { load("chain", "encrypted", "authorities"); });
}

}  // namespace
}  // namespace atl::test
