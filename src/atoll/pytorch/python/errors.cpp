// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/errors.h"

#include <algorithm>
#include <string_view>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

constexpr const char* kReplacementCharacter = "\xef\xbf\xbd";

// Returns the size of the UTF-8 character at the start of the text; 0 if it is invalid.
std::size_t character_at(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  for (std::size_t at = 1; at < size; ++at) {
    if ((byte(at) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_invalid = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_overlong || is_invalid ? 0 : size;
}

// Texts may come from other ranks, or be cut within a character, and Python accepts only UTF-8.
std::string as_utf8(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    if (size == 0) {
      made += kReplacementCharacter;
    } else {
      made += text.substr(0, size);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return made;
}

}  // namespace

void throw_as_torch(const Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string text = as_utf8(error.what());
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument: throw c10::ValueError(here, text);
    case ErrorKind::kPeerLost:
    case ErrorKind::kRefused:
    case ErrorKind::kProtocol: throw c10::DistNetworkError(here, text);
    case ErrorKind::kStore: throw c10::DistStoreError(here, text);
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kAborted:
    case ErrorKind::kUnavailable:
    case ErrorKind::kInternal: break;
  }
  throw c10::DistBackendError(here, text);
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return plain_text(known);
  } catch (...) {
    return "an unknown error";
  }
}

std::exception_ptr as_torch(const std::exception_ptr& error) noexcept {
  if (!error) return nullptr;
  try {
    translated([&] { std::rethrow_exception(error); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace atl::pytorch
