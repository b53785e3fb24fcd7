// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/jpeg.h"

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <string>

#include <jpeglib.h>

#include "atoll/core/error.h"

namespace atl::infer::wire {
namespace {

constexpr int kQuality = 90;
constexpr int kMaxSampling = 2;  // pixels under one sample of a colour, each way

// libjpeg's errors leave by longjmp. So no object with a destructor is made below run(): such objects are members, or
// the caller's.
struct Errors {
  jpeg_error_mgr base;  // must be first: libjpeg only knows this member
  std::jmp_buf out;
  char text[80];
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  std::snprintf(errors->text, sizeof(errors->text), "it is damaged or not a JPEG file (libjpeg's message %d)",
                info->err->msg_code);
  std::longjmp(errors->out, 1);
}

// Warnings report damaged data, which libjpeg would otherwise fill in.
void leave_at_warning(j_common_ptr info, int level) {
  if (level < 0) leave(info);
}

void do_nothing(j_common_ptr /*info*/) {}
void do_nothing(j_compress_ptr /*info*/) {}
void format_nothing(j_common_ptr /*info*/, char* text) { text[0] = '\0'; }

// Replaces jpeg_std_error(), which writes messages to stderr: because of that, Debian's archive could not be linked
// into a shared library.
jpeg_error_mgr* prepared(Errors& errors) {
  errors.base.error_exit = leave;
  errors.base.emit_message = leave_at_warning;
  errors.base.output_message = do_nothing;
  errors.base.format_message = format_nothing;
  errors.base.reset_error_mgr = do_nothing;
  return &errors.base;
}

boolean leave_when_full(j_compress_ptr info) { leave(reinterpret_cast<j_common_ptr>(info)); }

class Encoder {
 public:
  explicit Encoder(std::span<std::byte> out) : capacity_(out.size()) {
    info_.err = prepared(errors_);
    sink_.next_output_byte = reinterpret_cast<JOCTET*>(out.data());
    sink_.free_in_buffer = out.size();
    sink_.init_destination = do_nothing;
    sink_.empty_output_buffer = leave_when_full;
    sink_.term_destination = do_nothing;
  }
  ~Encoder() { jpeg_destroy_compress(&info_); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // The size of the file in bytes; none if it did not fit.
  std::optional<std::size_t> run(const JpegSize& size, const std::uint8_t* pixels) {
    if (setjmp(errors_.out) != 0) return std::nullopt;
    compress(size, pixels);
    return capacity_ - sink_.free_in_buffer;
  }

 private:
  [[gnu::noinline]] void compress(const JpegSize& size, const std::uint8_t* pixels) {
    jpeg_create_compress(&info_);
    info_.dest = &sink_;
    info_.image_width = static_cast<JDIMENSION>(size.width);
    info_.image_height = static_cast<JDIMENSION>(size.height);
    info_.input_components = static_cast<int>(size.channels);
    info_.in_color_space = size.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&info_);
    jpeg_set_quality(&info_, kQuality, TRUE);
    jpeg_start_compress(&info_, TRUE);
    const std::size_t row_bytes = size.width * size.channels;
    while (info_.next_scanline < info_.image_height) {
      auto* row = const_cast<JSAMPLE*>(pixels + info_.next_scanline * row_bytes);  // only read
      jpeg_write_scanlines(&info_, &row, 1);
    }
    jpeg_finish_compress(&info_);
  }

  Errors errors_{};
  jpeg_destination_mgr sink_{};
  jpeg_compress_struct info_{};
  const std::size_t capacity_;
};

class Decoder {
 public:
  Decoder() { info_.err = prepared(errors_); }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Null on success; otherwise a description of the fault, valid as long as this object.
  const char* run(const JpegSize& size, std::span<const std::byte> jpeg, std::uint8_t* pixels) {
    if (setjmp(errors_.out) != 0) return errors_.text;
    return decompress(size, jpeg, pixels);
  }

 private:
  [[gnu::noinline]] const char* decompress(const JpegSize& size, std::span<const std::byte> jpeg,
                                           std::uint8_t* pixels) {
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(jpeg.data()), jpeg.size());
    jpeg_read_header(&info_, TRUE);
    if (const char* why = misfit(size)) return why;
    info_.out_color_space = size.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_start_decompress(&info_);
    const std::size_t row_bytes = size.width * size.channels;
    while (info_.output_scanline < info_.output_height) {
      JSAMPLE* row = pixels + info_.output_scanline * row_bytes;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return info_.src->bytes_in_buffer == 0 ? nullptr : "there are bytes after its end";
  }

  // Progressive files and those with several scans would take memory for all coefficients at once.
  const char* misfit(const JpegSize& size) {
    if (info_.image_width != size.width || info_.image_height != size.height) return "it has another size";
    if (static_cast<std::size_t>(info_.num_components) != size.channels) return "it has another number of colours";
    if (info_.jpeg_color_space != (size.channels == 3 ? JCS_YCbCr : JCS_GRAYSCALE)) return "it has other colours";
    if (info_.progressive_mode || info_.arith_code || jpeg_has_multiple_scans(&info_)) return "it is not baseline";
    for (int i = 0; i < info_.num_components; ++i) {
      const jpeg_component_info& component = info_.comp_info[i];
      if (component.h_samp_factor > kMaxSampling || component.v_samp_factor > kMaxSampling) {
        return "its colours have another resolution";
      }
    }
    return nullptr;
  }

  Errors errors_{};
  jpeg_decompress_struct info_{};
};

}  // namespace

std::optional<std::vector<std::byte>> encode_jpeg(const JpegSize& size, std::span<const std::uint8_t> pixels,
                                                  std::size_t most_bytes) {
  std::vector<std::byte> jpeg(most_bytes + 1);  // a file that fills it is too long
  Encoder encoder(jpeg);
  const std::optional<std::size_t> bytes = encoder.run(size, pixels.data());
  if (!bytes) return std::nullopt;
  jpeg.resize(*bytes);
  return jpeg;
}

void decode_jpeg(const JpegSize& size, std::span<const std::byte> jpeg, std::span<std::uint8_t> pixels) {
  Decoder decoder;
  const char* why = decoder.run(size, jpeg, pixels.data());
  if (why != nullptr) throw Error(ErrorKind::kProtocol, std::string("a message packed as jpeg: ") + why);
}

}  // namespace atl::infer::wire
