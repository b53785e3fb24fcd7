// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/bundle/bundle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "atoll/core/bytes.h"
#include "atoll/infer/bundle/weight_file.h"
#include "atoll/transport/auth.h"
#include "tests/fuzz/weight_file_target.h"
#include "tests/infer/infer_cases.h"
#include "tests/support/graph_text.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::failure;

std::string file_with(const std::string& header, std::size_t data) {
  std::string text = header + std::string((64 - (8 + header.size()) % 64) % 64, ' ');
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  file += text;
  for (std::size_t i = 0; i < data; ++i) file += static_cast<char>(i);
  return file;
}

HostBytes bytes_of(const std::string& text) {
  const auto owner = std::make_shared<std::string>(text);
  return {as_byte_span(*owner), owner};
}

WeightFile weight_file_of(const std::string& file) { return WeightFile(bytes_of(file), "f"); }

const std::string kHeader = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                            R"("_pad0":{"dtype":"U8","shape":[40],"data_offsets":[24,64]},)"
                            R"("b.c":{"dtype":"BOOL","shape":[3],"data_offsets":[64,67]}})";

TEST(WeightFile, GivesTensorsInOrder) {
  const WeightFile file = weight_file_of(file_with(kHeader, 67));
  ASSERT_EQ(file.entries().size(), 3U);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[0].type, (Tensor{Dtype::kFloat32, {2, 3}}));
  EXPECT_EQ(file.entries()[2].type, (Tensor{Dtype::kBool, {3}}));
  const auto tensors = file.tensors();
  EXPECT_EQ(tensors.at("b.c").bytes.size(), 3U);
  EXPECT_EQ(tensors.at("b.c").bytes[0], std::byte{64});
  EXPECT_EQ(tensors.at("a").bytes[23], std::byte{23});
  EXPECT_TRUE(weight_file_of(std::string("\x02\0\0\0\0\0\0\0{}", 10)).entries().empty());
}

TEST(WeightFile, EveryPrefixIsRefused) {
  const std::string whole = file_with(kHeader, 67);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(failure(ErrorKind::kProtocol, [&] { weight_file_of(whole.substr(0, size)); }), "") << size;
  }
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { weight_file_of(whole + "x"); }), "");
}

TEST(WeightFile, SaysWhatIsWrong) {
  const auto refusal = [](const std::string& header, std::size_t data) {
    return failure(ErrorKind::kProtocol, [&] { weight_file_of(file_with(header, data)); });
  };
  const auto says = [&](const std::string& header, std::size_t data, const std::string& word) {
    const std::string message = refusal(header, data);
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  says("[]", 0, "not a JSON object");
  says("{", 0, "its header is not JSON: {");
  says(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "two");
  says(R"({"a":{"dtype":"F128","shape":[1],"data_offsets":[0,4]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[1099511627775,1099511627775],"data_offsets":[0,4]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "\"a\"");
  says(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "begins at byte 4");
  says(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "multiple of 64");
  says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "ends at 8");
  says(R"({"__metadata__":{"format":"pt"}})", 0, "__metadata__");
  says("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "deep");
  std::string lies = file_with(kHeader, 67);
  std::memset(lies.data(), 0xff, 8);
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { weight_file_of(lies); }), "");
}

TEST(WeightFile, MutatedHeadersNeverCrash) {
  test::Dice dice(31);
  const std::string whole = file_with(kHeader, 67);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string changed = whole;
    for (std::int64_t n = dice.integer(1, 3); n > 0; --n) {
      changed[static_cast<std::size_t>(dice.integer(0, 250))] = static_cast<char>(dice.integer(0, 255));
    }
    fuzz::weight_file(as_byte_span(changed));
    refused += failure(ErrorKind::kProtocol, [&] { weight_file_of(changed); }).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 3000);
}

class BundleFolder : public testing::Test {
 protected:
  void SetUp() override {
    Builder builder;
    const int input = builder.input({2, 3}, Dtype::kFloat32);
    const int weight = builder.weight({2, 3}, Dtype::kFloat32);
    builder.output(builder.call("aten::add.Tensor", {TensorId{input}, TensorId{weight}, std::int64_t{1}}, {2, 3},
                                Dtype::kFloat32));
    text_ = to_json(builder.graph());
    name_ = builder.graph().weights.front().name;
    file_ = file_with(R"({")" + name_ + R"(":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24);
    std::string pattern = testing::TempDir() + "atoll-bundle-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string write(const std::string& name) {
    const auto folder = std::filesystem::path(root_) / name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "graph.json", std::ios::binary) << text_;
    std::ofstream(folder / "weights.safetensors", std::ios::binary) << file_;
    return folder.string();
  }
  std::string hash() const {
    transport::Sha256 digest;
    digest.add(as_byte_span(text_));
    digest.add(as_byte_span(file_));
    return text_of(digest.finish());
  }

  std::string text_;
  std::string file_;
  std::string name_;
  std::string root_;
};

TEST_F(BundleFolder, IsReadWithItsWeightsInPlace) {
  const Bundle bundle = load_bundle(write(hash()));
  EXPECT_EQ(to_json(bundle.graph), text_);
  EXPECT_EQ(text_of(bundle.hash), hash());
  EXPECT_EQ(bundle.weight_file.bytes.size(), file_.size());
  const auto& weight = bundle.weights.at(name_);
  EXPECT_EQ(weight.bytes.size(), 24U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weight.bytes.data()) % 64, 0U);
}

TEST_F(BundleFolder, IsRefusedByWhatIsWrong) {
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { load_bundle(write("other")); }).find(hash()), std::string::npos);
  EXPECT_NE(failure(ErrorKind::kUnavailable, [&] { load_bundle(root_ + "/nothing"); }).find("graph.json"),
            std::string::npos);
  const std::string folder = write(hash());
  std::filesystem::remove(folder + "/weights.safetensors");
  EXPECT_NE(failure(ErrorKind::kUnavailable, [&] { load_bundle(folder); }).find("weights.safetensors"),
            std::string::npos);
  std::ofstream(folder + "/weights.safetensors", std::ios::binary)
      << file_with(R"({"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24);
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { load_bundle(folder); }).find(name_), std::string::npos);
  std::ofstream(folder + "/weights.safetensors", std::ios::binary)
      << file_with(R"({")" + name_ + R"(":{"dtype":"I32","shape":[2,3],"data_offsets":[0,24]}})", 24);
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { load_bundle(folder); }).find("another type"), std::string::npos);
}

TEST(Digest, OfKnownTexts) {
  // FIPS 180-4's example.
  transport::Sha256 digest;
  digest.add(as_byte_span("a"));
  digest.add(as_byte_span("bc"));
  EXPECT_EQ(text_of(digest.finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace atl::infer
