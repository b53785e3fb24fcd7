// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "atoll/infer/graph.h"

namespace atl::infer {

using Json = nlohmann::json;

/// The integer `value`, whose magnitude is below kIntegerBound. Throws Error(kProtocol) that names `where` otherwise.
std::int64_t integer_from(const Json& value, const std::string& where);

/// The index of a tensor; whether there is such a tensor is not looked at.
int tensor_from(const Json& value, const std::string& where);

std::string text_from(const Json& value, const std::string& where);

/// An argument of a node from its JSON (docs/regions.md has the forms). Throws Error(kProtocol) that names `where`.
Argument argument_from(const Json& value, const std::string& where);

/// The same back; argument_from gives an equal argument from it.
Json argument_json(const Argument& argument);

}  // namespace atl::infer
