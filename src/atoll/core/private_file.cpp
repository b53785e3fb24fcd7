// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"

namespace atl {

void write_private_file(const std::string& path, std::string_view text) {
  const auto check = [&](bool done) {
    if (!done) throw Error(ErrorKind::kUnavailable, with_errno("cannot write " + path, errno));
  };
  check(::unlink(path.c_str()) == 0 || errno == ENOENT);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  check(static_cast<bool>(file));
  while (!text.empty()) {
    const auto written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    check(written > 0);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace atl
