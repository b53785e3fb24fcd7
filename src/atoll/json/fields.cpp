// SPDX-License-Identifier: Apache-2.0
#include "atoll/json/fields.h"

namespace atl::json {
namespace {

bool fits(const Json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

void refuse(const Json& value, const std::string& where, const std::string& wanted, ErrorKind kind) {
  throw Error(kind, where + " is " + value.dump().substr(0, kShownBytes) + ", which is not " + wanted);
}

Fields::Fields(const Json& object, std::string what, ErrorKind kind)
    : object_(object), what_(std::move(what)), kind_(kind) {
  if (!object_.is_object()) refuse(object_, what_, "a JSON object", kind_);
}

void Fields::wrong(const std::string& key, const std::string& wanted) const {
  refuse(object_.at(key), name_of(key), wanted, kind_);
}

const Json* Fields::find(const std::string& key) {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

bool Fields::has(const std::string& key) {
  const Json* const value = find(key);
  return value != nullptr && !value->is_null();
}

const Json& Fields::at(const std::string& key) {
  const Json* const value = find(key);
  if (value == nullptr) throw Error(kind_, what_ + " lacks \"" + key + "\"");
  return *value;
}

double Fields::number(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_number()) wrong(key, "a number");
  return value.get<double>();
}

double Fields::number(const std::string& key, double fallback) { return has(key) ? number(key) : fallback; }

std::int64_t Fields::integer(const std::string& key) {
  const Json& value = at(key);
  if (!fits(value)) wrong(key, "an integer");
  return value.get<std::int64_t>();
}

std::int64_t Fields::integer(const std::string& key, std::int64_t fallback) {
  return has(key) ? integer(key) : fallback;
}

std::int64_t Fields::integer(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
  const std::int64_t value = integer(key, fallback);
  if (value >= least && value <= most) return value;
  throw Error(kind_, what_ + " has \"" + key + "\": " + std::to_string(value) + ": give " + std::to_string(least) +
                         " to " + std::to_string(most));
}

std::uint64_t Fields::unsigned_integer(const std::string& key, std::uint64_t fallback) {
  if (!has(key)) return fallback;
  const Json& value = at(key);
  if (!value.is_number_unsigned()) wrong(key, "an integer of at least 0");
  return value.get<std::uint64_t>();
}

bool Fields::boolean(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_boolean()) wrong(key, "true or false");
  return value.get<bool>();
}

bool Fields::boolean(const std::string& key, bool fallback) { return has(key) ? boolean(key) : fallback; }

std::string Fields::text(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_string()) wrong(key, "a string");
  return value.get<std::string>();
}

std::string Fields::text(const std::string& key, const std::string& fallback) {
  return has(key) ? text(key) : fallback;
}

const Json& Fields::list(const std::string& key, std::size_t most) {
  const Json& value = at(key);
  if (!value.is_array()) wrong(key, "a list");
  if (value.size() > most) throw Error(kind_, name_of(key), " has ", value.size(), " entries: at most ", most);
  return value;
}

std::vector<double> Fields::numbers(const std::string& key) {
  std::vector<double> result;
  for (const Json& value : list(key)) {
    if (!value.is_number()) wrong(key, "a list of numbers");
    result.push_back(value.get<double>());
  }
  return result;
}

std::vector<std::int64_t> Fields::integers(const std::string& key) {
  std::vector<std::int64_t> result;
  for (const Json& value : list(key)) {
    if (!fits(value)) wrong(key, "a list of integers");
    result.push_back(value.get<std::int64_t>());
  }
  return result;
}

std::vector<std::pair<double, double>> Fields::pairs(const std::string& key) {
  std::vector<std::pair<double, double>> result;
  for (const Json& pair : list(key)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      wrong(key, "a list of pairs of numbers");
    }
    result.emplace_back(pair[0].get<double>(), pair[1].get<double>());
  }
  return result;
}

void Fields::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    std::string known;
    for (const std::string& name : asked_) known.append(known.empty() ? "" : ", ").append(name);
    throw Error(kind_, what_ + " has an unknown key \"" + key.substr(0, kShownBytes) + "\"; known keys: " + known);
  }
}

}  // namespace atl::json
