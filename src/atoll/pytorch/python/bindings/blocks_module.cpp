// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "atoll/collectives/reduce/blocks.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {
namespace {

using collectives::BlockFormat;
using collectives::DataType;

BlockFormat format_of(const std::string& name) {
  for (int i = 0; i < collectives::kBlockFormatCount; ++i) {
    if (name == to_string(static_cast<BlockFormat>(i))) return static_cast<BlockFormat>(i);
  }
  TORCH_CHECK_VALUE(false, "invalid block format \"", name, "\": choose int8, fp8_e4m3 or fp8_e5m2");
}

/// `values`, cut into rows of `row` elements, of which the last ones may be short or empty, and the bytes of each row,
/// which are a row of `packed`.
struct Rows {
  Rows(const char* operation, const at::Tensor& values, const at::Tensor& packed, std::int64_t elements_of_row)
      : numel(values.numel()), row(elements_of_row) {
    TORCH_CHECK_VALUE(values.device().is_cpu() && packed.device().is_cpu(), operation, ": expected CPU tensors");
    TORCH_CHECK_VALUE(values.is_contiguous() && packed.is_contiguous(), operation, ": expected contiguous tensors");
    TORCH_CHECK_VALUE(packed.scalar_type() == at::kByte && packed.dim() == 2, operation,
                      ": expected packed bytes in two dimensions, got ", packed.dim(), " of ",
                      dtype_name(packed.scalar_type()));
    const auto found = data_type(values.scalar_type());
    TORCH_CHECK_TYPE(found && collectives::can_pack(*found), operation, ": values are ",
                     dtype_name(values.scalar_type()), ": expected float32, bfloat16, float16 or float64");
    dtype = *found;
    count = packed.size(0);
    stride = packed.size(1);
    TORCH_CHECK_VALUE(row > 0 && numel <= count * row, operation, ": ", numel, " values are more than ", count,
                      " rows of ", row);
    TORCH_CHECK_VALUE(stride >= bytes_of(row), operation, ": a row of ", row, " values takes ", bytes_of(row),
                      " bytes, not ", stride);
  }

  static std::int64_t bytes_of(std::int64_t elements) {
    return static_cast<std::int64_t>(collectives::packed_bytes(static_cast<std::size_t>(elements)));
  }
  std::size_t elements(std::int64_t index) const {
    return static_cast<std::size_t>(std::clamp(numel - index * row, std::int64_t{0}, row));
  }

  std::int64_t numel;
  std::int64_t row;
  std::int64_t count = 0;
  std::int64_t stride = 0;
  DataType dtype = DataType::kFloat32;
};

// Packs a short row as if zeros followed it, so that all rows have the same layout.
void pack_short_row(BlockFormat format, const Rows& rows, std::byte* values, std::size_t elements, std::byte* packed,
                    bool keep_loss) {
  const std::size_t size = collectives::size_of(rows.dtype);
  std::vector<std::byte> whole(static_cast<std::size_t>(rows.row) * size);
  std::copy_n(values, elements * size, whole.begin());
  if (!keep_loss) return pack_blocks(format, rows.dtype, whole.data(), static_cast<std::size_t>(rows.row), packed);
  auto* const floats = reinterpret_cast<float*>(whole.data());
  pack_blocks_keeping_loss(format, floats, static_cast<std::size_t>(rows.row), packed);
  std::copy_n(whole.begin(), elements * size, values);
}

void pack(const std::string& format_name, const at::Tensor& values, const at::Tensor& packed, std::int64_t row,
          bool keep_loss) {
  const BlockFormat format = format_of(format_name);
  const Rows rows("pack_blocks", values, packed, row);
  TORCH_CHECK_TYPE(!keep_loss || rows.dtype == DataType::kFloat32, "pack_blocks: keep_loss needs float32");
  auto* const from = static_cast<std::byte*>(values.data_ptr());
  auto* const to = static_cast<std::byte*>(packed.data_ptr());
  const std::size_t size = collectives::size_of(rows.dtype);
  const pybind11::gil_scoped_release released;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    std::byte* const begin = from + static_cast<std::size_t>(i * row) * size;
    std::byte* const bytes = to + i * rows.stride;
    const std::size_t elements = rows.elements(i);
    if (elements < static_cast<std::size_t>(row)) {
      pack_short_row(format, rows, begin, elements, bytes, keep_loss);
    } else if (keep_loss) {
      pack_blocks_keeping_loss(format, reinterpret_cast<float*>(begin), elements, bytes);
    } else {
      pack_blocks(format, rows.dtype, begin, elements, bytes);
    }
    std::fill(bytes + Rows::bytes_of(row), bytes + rows.stride, std::byte{0});
  }
}

void unpack(const std::string& format_name, const at::Tensor& packed, const at::Tensor& values, std::int64_t row,
            bool add) {
  const BlockFormat format = format_of(format_name);
  const Rows rows("unpack_blocks", values, packed, row);
  TORCH_CHECK_TYPE(!add || rows.dtype == DataType::kFloat32, "unpack_blocks: add needs float32");
  auto* const from = static_cast<const std::byte*>(packed.data_ptr());
  auto* const to = static_cast<std::byte*>(values.data_ptr());
  const std::size_t size = collectives::size_of(rows.dtype);
  const pybind11::gil_scoped_release released;
  std::vector<std::byte> closed;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    std::byte* const begin = to + static_cast<std::size_t>(i * row) * size;
    const std::byte* bytes = from + i * rows.stride;
    const std::size_t elements = rows.elements(i);
    if (elements < static_cast<std::size_t>(row)) {
      // The codes of the existing elements, followed by their scales.
      closed.assign(bytes, bytes + elements);
      const auto scales = static_cast<std::int64_t>(collectives::packed_bytes(elements) - elements);
      closed.insert(closed.end(), bytes + row, bytes + row + scales);
      bytes = closed.data();
    }
    if (add) {
      add_blocks(format, bytes, elements, reinterpret_cast<float*>(begin));
    } else {
      unpack_blocks(format, rows.dtype, bytes, elements, begin);
    }
  }
}

}  // namespace

void bind_blocks(pybind11::module_& module) {
  module.def("pack_blocks", &pack, pybind11::arg("format"), pybind11::arg("values"), pybind11::arg("packed"),
             pybind11::arg("row"), pybind11::arg("keep_loss") = false);
  module.def("unpack_blocks", &unpack, pybind11::arg("format"), pybind11::arg("packed"), pybind11::arg("values"),
             pybind11::arg("row"), pybind11::arg("add") = false);
}

}  // namespace atl::pytorch
