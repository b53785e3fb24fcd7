// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/jpeg.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include <jpeglib.h>

#include "picture_cases.h"
#include "tests/infer/wire/cases.h"

namespace atl::infer::wire {
namespace {

using test::ByteVector;
using test::Dice;
using test::errors_between;
using test::failure;
using test::picture;

constexpr JpegSize kUsual{64, 48, 3};

ByteVector file_of(const JpegSize& size) {
  const auto file = encode_jpeg(size, picture(size), std::size_t{1} << 20);
  EXPECT_TRUE(file);
  return file.value_or(ByteVector{});
}

std::vector<std::uint8_t> pixels_of(const JpegSize& size, const ByteVector& file) {
  const ByteVector exact = file;  // memory of exactly its size
  std::vector<std::uint8_t> pixels(size.width * size.height * size.channels, 0xcd);
  decode_jpeg(size, exact, pixels);
  return pixels;
}

std::string refused(const JpegSize& size, const ByteVector& file) {
  return failure(ErrorKind::kProtocol, [&] { pixels_of(size, file); });
}

void expect_refused(const std::string& why, const JpegSize& size, const ByteVector& file) {
  EXPECT_NE(refused(size, file).find(why), std::string::npos) << refused(size, file);
}

// A file as other encoders write it.
ByteVector other_file(const JpegSize& size, const std::function<void(jpeg_compress_struct&)>& change) {
  std::vector<std::uint8_t> pixels = picture(size);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &memory, &bytes);
  info.image_width = static_cast<JDIMENSION>(size.width);
  info.image_height = static_cast<JDIMENSION>(size.height);
  info.input_components = static_cast<int>(size.channels);
  info.in_color_space = size.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  change(info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPLE* row = pixels.data() + info.next_scanline * size.width * size.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  ByteVector file(begin, begin + bytes);
  std::free(memory);
  return file;
}

TEST(Jpeg, GivesNearlyTheSameBack) {
  for (const std::size_t channels : {1U, 3U}) {
    for (const auto& [width, height] : std::vector<std::pair<std::size_t, std::size_t>>{
             {1, 1}, {1, 200}, {200, 1}, {7, 5}, {8, 8}, {17, 33}, {64, 48}, {255, 31}}) {
      const JpegSize size{width, height, channels};
      const test::Errors errors = errors_between(picture(size), pixels_of(size, file_of(size)));
      EXPECT_LT(errors.mean, 4) << width << "x" << height << "x" << channels;
      EXPECT_LT(errors.most, 40) << width << "x" << height << "x" << channels;
    }
  }
  EXPECT_LT(file_of(kUsual).size(), 64U * 48 * 3 / 4);
}

TEST(Jpeg, TakesAsMuchAsItMay) {
  const ByteVector file = file_of(kUsual);
  EXPECT_EQ(encode_jpeg(kUsual, picture(kUsual), file.size()), file);
  for (const std::size_t most : {file.size() - 1, file.size() / 2, std::size_t{1}, std::size_t{0}}) {
    EXPECT_FALSE(encode_jpeg(kUsual, picture(kUsual), most)) << most;
  }
}

TEST(Jpeg, OnlyTheExpectedSizeIsRead) {
  const ByteVector file = file_of(kUsual);
  EXPECT_EQ(refused(kUsual, file), "");
  expect_refused("another size", {64, 47, 3}, file);
  expect_refused("another size", {65, 48, 3}, file);
  expect_refused("another size", {48, 64, 3}, file);
  expect_refused("another number of colours", {64, 48, 1}, file);
  expect_refused("another number of colours", kUsual, file_of({64, 48, 1}));
}

// Sizes are in the frame's header, after its marker, length and precision.
TEST(Jpeg, AFileThatSaysItIsHugeIsRefusedAtOnce) {
  ByteVector file = file_of(kUsual);
  std::size_t at = 0;
  while (file.at(at) != std::byte{0xff} || file.at(at + 1) != std::byte{0xc0}) ++at;
  for (std::size_t i = at + 5; i < at + 9; ++i) file.at(i) = std::byte{0xfe};
  expect_refused("another size", kUsual, file);
  for (std::size_t i = at + 5; i < at + 9; ++i) file.at(i) = std::byte{0xff};
  EXPECT_NE(refused(kUsual, file), "");
}

TEST(Jpeg, WhatIsNotWholeOrMoreIsRefused) {
  ByteVector file = file_of({33, 20, 3});
  for (std::size_t length = 0; length < file.size(); ++length) {
    const ByteVector part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_NE(refused({33, 20, 3}, part), "") << length << " of " << file.size();
  }
  file.push_back({});
  expect_refused("bytes after its end", {33, 20, 3}, file);
}

TEST(Jpeg, OtherProgramsBaselineIsRead) {
  const ByteVector coarse = other_file(kUsual, [](jpeg_compress_struct& info) { jpeg_set_quality(&info, 30, TRUE); });
  EXPECT_LT(errors_between(picture(kUsual), pixels_of(kUsual, coarse)).mean, 10);
  const ByteVector full = other_file(kUsual, [](jpeg_compress_struct& info) {
    info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
    info.restart_interval = 2;
  });
  EXPECT_EQ(refused(kUsual, full), "");
}

TEST(Jpeg, OtherKindsAreRefused) {
  expect_refused("not baseline", kUsual, other_file(kUsual, [](auto& info) { jpeg_simple_progression(&info); }));
  jpeg_scan_info scans[3] = {};
  for (int i = 0; i < 3; ++i) {
    scans[i].comps_in_scan = 1;
    scans[i].component_index[0] = i;
    scans[i].Se = 63;
  }
  expect_refused("not baseline", kUsual, other_file(kUsual, [&](auto& info) {
                   info.scan_info = scans;
                   info.num_scans = 3;
                 }));
  expect_refused("other colours", kUsual, other_file(kUsual, [](auto& info) { jpeg_set_colorspace(&info, JCS_RGB); }));
  expect_refused("another resolution", kUsual, other_file(kUsual, [](auto& info) {
                   info.comp_info[0].h_samp_factor = 4;
                   info.comp_info[0].v_samp_factor = 1;
                 }));
#ifdef D_ARITH_CODING_SUPPORTED
  expect_refused("not baseline", kUsual, other_file(kUsual, [](auto& info) { info.arith_code = TRUE; }));
#endif
}

TEST(Jpeg, MutatedFilesAreRefusedOrRead) {
  Dice dice(21);
  for (const JpegSize& size : {JpegSize{33, 20, 3}, JpegSize{16, 16, 1}}) {
    const ByteVector file = file_of(size);
    int wrong = 0;
    for (int i = 0; i < 2000; ++i) wrong += refused(size, test::mutated(dice, file)).empty() ? 0 : 1;
    EXPECT_GT(wrong, 500);
  }
}

}  // namespace
}  // namespace atl::infer::wire
