// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace atl::test {

/// A folder that is removed with everything in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "atoll-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file with those permissions and returns its path.
  std::string write(const std::string& name, const std::string& content, unsigned mode = 0600) const {
    const std::string file = path(name);
    std::ofstream(file, std::ios::binary) << content;
    std::filesystem::permissions(file, static_cast<std::filesystem::perms>(mode));
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace atl::test
