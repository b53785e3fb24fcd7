// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// A captured model as atoll export writes it: a folder, named by the hash of its content, with graph.json and
/// weights.safetensors.
struct Bundle {
  Graph graph;
  std::string graph_text;
  HostBytes weight_file;                     ///< mapped
  std::map<std::string, HostBytes> weights;  ///< by name, in the file
  wire::BundleHash hash{};
};

/// Reads a bundle's folder. Throws Error(kUnavailable) for files that cannot be read, and kProtocol where graph and
/// weights are damaged, do not fit together, or do not have the hash that the folder is named by.
Bundle load_bundle(const std::string& folder);

/// Makes a bundle from a graph's text and the bytes of its weight file. Throws Error(kProtocol) as load_bundle does;
/// `name` stands for the folder in messages.
Bundle make_bundle(std::string graph_text, HostBytes weight_file, const std::string& name);

std::string text_of(const wire::BundleHash& hash);

}  // namespace atl::infer
