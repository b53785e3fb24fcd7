// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/bundle/bundle.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/infer/bundle/weight_file.h"
#include "atoll/infer/graph_json.h"
#include "atoll/transport/auth.h"

namespace atl::infer {
namespace {

std::string read_graph_text(const std::filesystem::path& path) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed) {
    throw Error(ErrorKind::kUnavailable,
                path.string() + " cannot be read: " + failed.message() + ": give a folder of atoll export");
  }
  if (size > kMaxGraphBytes) {
    throw Error(ErrorKind::kProtocol, path.string() + " has " + std::to_string(size) + " bytes; a graph has at most " +
                                          std::to_string(kMaxGraphBytes));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    throw Error(ErrorKind::kUnavailable, with_errno(path.string() + " cannot be read", errno));
  }
  return text;
}

void check_weights(const Graph& graph, const WeightFile& file, const std::string& name) {
  std::map<std::string, const Tensor*> there;
  for (const WeightFile::Entry& entry : file.entries()) there.emplace(entry.name, &entry.type);
  for (const Weight& weight : graph.weights) {
    const auto found = there.find(weight.name);
    const Tensor& wanted = graph.tensors.at(static_cast<std::size_t>(weight.tensor));
    if (found != there.end() && *found->second == wanted) continue;
    throw Error(ErrorKind::kProtocol,
                name + ": the weight \"" + weight.name + "\" " +
                    (found == there.end() ? "is not in the weight file"
                                          : "has another type in the weight file than in the graph"));
  }
}

}  // namespace

Bundle load_bundle(const std::string& folder) {
  const std::filesystem::path path(folder);
  std::string text = read_graph_text(path / "graph.json");
  const WeightFile file((path / "weights.safetensors").string());
  Bundle bundle = make_bundle(std::move(text), file.bytes(), folder);
  std::error_code failed;
  const std::string name = std::filesystem::canonical(path, failed).filename().string();
  if (name != text_of(bundle.hash)) {
    throw Error(ErrorKind::kProtocol,
                folder + " holds a model with the hash " + text_of(bundle.hash) +
                    ", which must be the folder's name: the folder was renamed, or its files have changed");
  }
  return bundle;
}

Bundle make_bundle(std::string graph_text, HostBytes weight_file, const std::string& name) {
  Bundle bundle;
  bundle.graph = graph_from_json(graph_text);
  const WeightFile file(weight_file, name);
  check_weights(bundle.graph, file, name);
  bundle.weights = file.tensors();
  transport::Sha256 digest;
  digest.add(as_byte_span(graph_text));
  digest.add(weight_file.bytes);
  bundle.hash = digest.finish();
  bundle.graph_text = std::move(graph_text);
  bundle.weight_file = std::move(weight_file);
  return bundle;
}

std::string text_of(const wire::BundleHash& hash) { return hex(hash); }

}  // namespace atl::infer
