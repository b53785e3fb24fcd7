// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <string>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

class Descriptors : public testing::Test {
 protected:
  Descriptors() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    here_ = Fd(ends[0]);
    there_ = Fd(ends[1]);
  }
  static ino_t file(const Fd& descriptor) {
    struct stat facts {};
    ::fstat(descriptor.get(), &facts);
    return facts.st_ino;
  }
  Fd here_;
  Fd there_;
};

TEST_F(Descriptors, ArriveInOrderWithTheirBytes) {
  std::vector<Fd> memories;
  std::vector<int> numbers;
  for (std::size_t i = 0; i < kMaxSentDescriptors; ++i) {
    numbers.push_back(memories.emplace_back(make_sealed_memfd("atoll-test", 4'096)).get());
  }
  EXPECT_FALSE(receive_descriptors(there_.get(), 5));
  ASSERT_TRUE(send_descriptors(here_.get(), as_byte_span("hello"), numbers));
  const auto received = receive_descriptors(there_.get(), 5);
  ASSERT_TRUE(received);
  EXPECT_EQ(std::memcmp(received->bytes.data(), "hello", 5), 0);
  ASSERT_EQ(received->descriptors.size(), memories.size());
  for (std::size_t i = 0; i < memories.size(); ++i) EXPECT_EQ(file(received->descriptors[i]), file(memories[i])) << i;
}

TEST_F(Descriptors, BytesMayComeAlone) {
  ASSERT_TRUE(send_descriptors(here_.get(), as_byte_span("x"), {}));
  const auto received = receive_descriptors(there_.get(), 1);
  ASSERT_TRUE(received);
  EXPECT_TRUE(received->descriptors.empty());
}

TEST_F(Descriptors, AnotherNumberOfBytesIsRefused) {
  ASSERT_TRUE(send_descriptors(here_.get(), as_byte_span("hell"), {}));
  EXPECT_THROW(receive_descriptors(there_.get(), 5), Error);
}

TEST_F(Descriptors, AClosedEndIsAnError) {
  here_.reset();
  EXPECT_THROW(receive_descriptors(there_.get(), 5), Error);
  EXPECT_FALSE(send_descriptors(there_.get(), as_byte_span("hello"), {}));
}

}  // namespace
}  // namespace atl::transport
