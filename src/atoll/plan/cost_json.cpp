// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/cost_json.h"

#include "atoll/json/fields.h"
#include "atoll/plan/text.h"

namespace atl::plan {

using json::Fields;
using json::Json;

Json CostFields::write(const Cost& cost) {
  Json value{{"shape", cost.shape()}};
  if (cost.shape_ == Cost::Shape::kTable) {
    value["points"] = Json::array();
    for (const Point& point : cost.points_) value["points"].push_back({point.batch, point.seconds});
  } else {
    value[cost.shape_ == Cost::Shape::kStaircase ? "per_launch" : "fixed"] = cost.fixed_;
    value["per_sample"] = cost.per_sample_;
  }
  if (cost.shape_ == Cost::Shape::kSaturating) value["knee"] = cost.knee_;
  if (cost.shape_ == Cost::Shape::kStaircase) value["step"] = static_cast<std::int64_t>(cost.step_);
  if (cost.factor_ != 1) value["factor"] = cost.factor_;
  if (!cost.buckets_.empty()) {
    Json buckets = Json::array();
    for (const Bucket& bucket : cost.buckets_) buckets.push_back({bucket.ready, bucket.seconds});
    value["overlap"] = {{"forward_share", cost.forward_share_}, {"buckets", std::move(buckets)}};
  }
  return value;
}

Cost CostFields::read(const Json& value, const std::string& what) {
  Fields fields(value, what);
  const std::string shape = fields.text("shape");
  Cost cost;
  if (shape == "affine") {
    cost = Cost::affine(fields.number("fixed", 0), fields.number("per_sample"));
  } else if (shape == "saturating") {
    cost = Cost::saturating(fields.number("fixed", 0), fields.number("per_sample"), fields.number("knee"));
  } else if (shape == "staircase") {
    cost = Cost::staircase(fields.integer("step"), fields.number("per_launch", 0), fields.number("per_sample"));
  } else if (shape == "table") {
    std::vector<Point> points;
    for (const auto& [batch, seconds] : fields.pairs("points")) points.push_back({batch, seconds});
    cost = Cost::table(std::move(points));
  } else {
    refuse(what + " has the unknown shape \"" + shape + "\": give one of affine, saturating, staircase, table");
  }
  if (fields.has("factor")) cost = cost.scaled(fields.number("factor"));
  if (fields.has("overlap")) {
    Fields overlap(fields.at("overlap"), what + "'s overlap");
    std::vector<Bucket> buckets;
    for (const auto& [ready, seconds] : overlap.pairs("buckets")) buckets.push_back({ready, seconds});
    cost = cost.overlapped(overlap.number("forward_share"), std::move(buckets));
    overlap.done();
  }
  fields.done();
  return cost;
}

std::string Cost::to_json() const { return CostFields::write(*this).dump(); }

Cost Cost::from_json(const std::string& text) { return CostFields::read(json::parse(text, "a cost"), "a cost"); }

}  // namespace atl::plan
