// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/infer/graph.h"
#include "atoll/json/parse.h"

namespace atl::infer {

using json::Json;

/// The integer `value`, whose magnitude is below kIntegerBound. Throws Error(kProtocol) that names `where` otherwise.
std::int64_t integer_from(const Json& value, const std::string& where);

/// The index of a tensor. Does not check that the graph has such a tensor.
int tensor_from(const Json& value, const std::string& where);

std::string text_from(const Json& value, const std::string& where);

/// Reads an argument of a node from its JSON (docs/regions.md lists the forms). Throws Error(kProtocol) that names
/// `where`.
Argument argument_from(const Json& value, const std::string& where);

/// The JSON of an argument, from which argument_from reads an equal argument.
Json argument_json(const Argument& argument);

}  // namespace atl::infer
