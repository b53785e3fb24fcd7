// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/engine/engine_runs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "atoll/infer/engine/engine_check.h"
#include "tests/infer/fake_runner.h"
#include "tests/infer/wire/codec_cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::bytes_of_values;
using test::failure;
using test::FakeRunner;
using test::plain;
using test::plain_value;
using ValueList = std::vector<Value>;
using Body = std::function<ValueList(std::span<const Value>)>;

class FunctionEngine final : public LocalEngine {
 public:
  explicit FunctionEngine(Body body) : body_(std::move(body)) {}
  ValueList run(std::span<const Value> inputs) override { return body_(inputs); }

 private:
  const Body body_;
};

// A convolution with weights `scale`, and a mean.
struct Model {
  explicit Model(double scale) : loaded(graph(), weights(scale), std::make_shared<FakeRunner>()) {}

  static Graph graph() {
    test::Builder builder;
    const int image = builder.input({1, 2, 9});
    const int weight = builder.weight({3, 2, 3});
    const int hidden = builder.call(
        "aten::conv1d",
        {TensorId{image}, TensorId{weight}, std::monostate{}, Ints{1}, Ints{1}, Ints{1}, std::int64_t{1}}, {1, 3, 9});
    builder.output(builder.call("aten::relu", {TensorId{hidden}}, {1, 3, 9}));
    builder.output(builder.call("aten::mean", {TensorId{hidden}, Ints{2}, true}, {1, 3, 1}));
    return builder.graph();
  }
  static std::map<std::string, HostBytes> weights(double scale) {
    std::vector<double> values;
    for (int i = 0; i < 18; ++i) values.push_back(scale * (i % 5 - 2));
    const auto owner = std::make_shared<test::ByteVector>(bytes_of_values(values));
    return {{graph().weights.front().name, {*owner, owner}}};
  }
  ValueList answer(std::span<const Value> inputs) const {
    const Operators operators = operators_of(loaded.graph(), -1, -1);
    Inference inference(loaded, operators);
    std::vector<std::vector<Region>> held(loaded.graph().tensors.size());
    held[static_cast<std::size_t>(loaded.graph().inputs.front())] = {{0, 1}};
    inference.set_input(loaded.graph().inputs.front(), inputs.front());
    inference.run(rest_of(loaded.graph(), operators, held), no_exchange());
    ValueList values;
    for (const Argument& output : loaded.graph().outputs) {
      values.push_back(inference.whole(std::get<TensorId>(output).id));
    }
    return values;
  }
  LoadedModel loaded;
};

class Engines : public testing::Test {
 protected:
  static constexpr double kSlow = 10;  // seconds of the model's own operators: any engine is quicker
  static constexpr double kQuick = 1;  // likewise, and not waited for long

  Body own() {
    return [model = model_](std::span<const Value> inputs) { return model->answer(inputs); };
  }
  std::unique_ptr<EngineRuns> runs(Body body, double own_seconds = kSlow, const EngineOptions& options = {}) {
    return std::make_unique<EngineRuns>(std::make_shared<FunctionEngine>(std::move(body)), model_->loaded, own(),
                                        own_seconds, options);
  }
  std::string refused(const Body& body, const EngineOptions& options = {}) {
    return failure(ErrorKind::kInvalidArgument, [&] { runs(body, kSlow, options); });
  }
  ValueList inputs(double value = 1) const { return {plain_value({1, 2, 9}, std::vector<double>(18, value))}; }
  void expect_own(const std::optional<ValueList>& found, const ValueList& given) {
    ASSERT_TRUE(found);
    const ValueList wanted = model_->answer(given);
    ASSERT_EQ(found->size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(plain((*found)[i]).data, plain(wanted[i]).data);
  }

  const std::shared_ptr<Model> model_ = std::make_shared<Model>(1);
};

// The outputs of `body`, times `factor`.
Body times(Body body, double factor) {
  return [body = std::move(body), factor](std::span<const Value> inputs) {
    ValueList values = body(inputs);
    for (Value& value : values) {
      std::vector<double> data = plain(value).data;
      for (double& each : data) each *= factor;
      value = plain_value(plain(value).shape, std::move(data));
    }
    return values;
  };
}

TEST_F(Engines, ARightOneAnswers) {
  const auto engine = runs(own());
  EXPECT_TRUE(engine->is_used());
  EXPECT_GT(engine->seconds(), 0);
  for (const double value : {0.5, -3.0}) expect_own(engine->run(inputs(value)), inputs(value));
  const EngineReport report = engine->report();
  EXPECT_EQ(report.state, "used");
  EXPECT_EQ(report.runs, 2U);
  EXPECT_EQ(report.failures + report.late, 0U);
  EXPECT_EQ(report.deviation, 0);
  EXPECT_EQ(report.seconds, engine->seconds());
}

TEST_F(Engines, OneThatIsNoQuickerThanTheModelIsNotUsed) {
  const auto engine = runs(own(), 0);
  EXPECT_FALSE(engine->is_used());
  EXPECT_FALSE(engine->run(inputs()));
  EXPECT_EQ(engine->report().state, "slower");
}

TEST_F(Engines, OtherWeightsAreFound) {
  const auto other = std::make_shared<Model>(1.5);
  const std::string why = refused([other](std::span<const Value> inputs) { return other->answer(inputs); });
  EXPECT_NE(why.find("output 0 deviates by 0.33"), std::string::npos) << why;
  EXPECT_NE(why.find("engine_tolerance"), std::string::npos);
}

TEST_F(Engines, MayDeviateAsFarAsIsAllowed) {
  const Body near = times(own(), 1.01);
  EXPECT_NE(refused(near), "");
  EngineOptions options;
  options.tolerance = 0.02;
  EXPECT_NEAR(runs(near, kSlow, options)->report().deviation, 0.01 / 1.01, 1e-6);
  options.tolerance = 0.005;
  EXPECT_NE(refused(near, options), "");
  EXPECT_EQ(runs(times(own(), 1 + 1e-12))->report().state, "used") << "rounding is allowed";
}

TEST_F(Engines, OtherTensorsAreRefused) {
  const auto with = [&](const std::function<void(ValueList&)>& change) {
    return refused([own = own(), change](std::span<const Value> inputs) {
      ValueList values = own(inputs);
      change(values);
      return values;
    });
  };
  EXPECT_NE(with([](ValueList& values) { values.pop_back(); }).find("it returns 1 tensors, but the model returns 2"),
            std::string::npos);
  EXPECT_NE(with([](ValueList& values) { values.push_back(values.front()); }).find("3 tensors"), std::string::npos);
  EXPECT_NE(with([](ValueList& values) { values.front() = nullptr; }).find("output 0 is missing"), std::string::npos);
  EXPECT_NE(with([](ValueList& values) {
              std::swap(values[0], values[1]);
            }).find("output 0 is float64 [1, 3, 1], but the model's is float64 [1, 3, 9]"),
            std::string::npos);
}

TEST_F(Engines, OneThatThrowsAtTheBeginningIsRefused) {
  const std::string why =
      refused([](std::span<const Value>) -> ValueList { throw std::runtime_error("no such shape"); });
  EXPECT_NE(why.find("does not accept the model's inputs: no such shape"), std::string::npos) << why;
}

TEST_F(Engines, OneThatStallsAtTheBeginningIsNotWaitedForForEver) {
  std::promise<void> gate;
  EngineOptions options;
  options.start_limit = 20ms;
  const std::string why = failure(ErrorKind::kTimeout, [&] {
    runs(
        [open = gate.get_future().share()](std::span<const Value>) -> ValueList {
          open.wait();
          return {};
        },
        kSlow, options);
  });
  EXPECT_NE(why.find("0.02 s"), std::string::npos) << why;
  gate.set_value();
}

// Wrong only for the example, whose values random inputs never have.
TEST_F(Engines, AnExampleIsComparedToo) {
  const Body body = [own = own()](std::span<const Value> inputs) {
    return plain(inputs.front()).data.front() == 7 ? times(own, 2)(inputs) : own(inputs);
  };
  EXPECT_NO_THROW(runs(body));
  const auto example = std::make_shared<test::ByteVector>(bytes_of_values(std::vector<double>(18, 7.0)));
  EngineOptions options;
  options.example = {{*example, example}};
  EXPECT_NE(refused(body, options).find("deviates by 0.5"), std::string::npos);
  options.example.clear();
  options.example.resize(2, {*example, example});
  EXPECT_NE(refused(own(), options).find("has 2 inputs, but the model has 1"), std::string::npos);
}

TEST_F(Engines, WhereTheModelTakesNotAnyNumbersZerosAreCompared) {
  const Body picky = [own = own()](std::span<const Value> inputs) {
    for (const double each : plain(inputs.front()).data) {
      if (each != 0) throw Error(ErrorKind::kInvalidArgument, "zeros only");
    }
    return own(inputs);
  };
  const EngineRuns engine(std::make_shared<FunctionEngine>(own()), model_->loaded, picky, kSlow, {});
  EXPECT_TRUE(engine.is_used());
}

TEST_F(Engines, ItIsGivenUpAfterThreeFailuresInARow) {
  const auto fails = std::make_shared<std::atomic<bool>>(false);
  const auto engine = runs([own = own(), fails](std::span<const Value> inputs) {
    if (*fails) throw std::runtime_error("out of luck");
    return own(inputs);
  });
  for (const int failures : {2, 1}) {
    *fails = true;
    for (int i = 0; i < failures; ++i) EXPECT_FALSE(engine->run(inputs()));
    *fails = false;
    expect_own(engine->run(inputs()), inputs());
  }
  EXPECT_EQ(engine->report().failures, 3U);
  EXPECT_EQ(engine->report().text, "out of luck");
  *fails = true;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(engine->run(inputs()));
  *fails = false;
  EXPECT_FALSE(engine->is_used());
  EXPECT_FALSE(engine->run(inputs()));
  EXPECT_EQ(engine->report().state, "given up");
  EXPECT_EQ(engine->report().runs, 2U);
}

TEST_F(Engines, OtherTensorsLaterAreAFailure) {
  const auto fails = std::make_shared<std::atomic<bool>>(false);
  const auto engine = runs([own = own(), fails](std::span<const Value> inputs) {
    ValueList values = own(inputs);
    if (*fails) values.pop_back();
    return values;
  });
  *fails = true;
  EXPECT_FALSE(engine->run(inputs()));
  EXPECT_NE(engine->report().text.find("it returns 1 tensors"), std::string::npos);
}

TEST_F(Engines, OneThatDoesNotComeBackIsLeftAloneUntilItDoes) {
  const auto stalls = std::make_shared<std::atomic<bool>>(false);
  std::promise<void> gate;
  const auto engine = runs(
      [own = own(), stalls, open = gate.get_future().share()](std::span<const Value> inputs) {
        if (*stalls) open.wait();
        return own(inputs);
      },
      kQuick);
  ASSERT_TRUE(engine->is_used());
  *stalls = true;
  EXPECT_FALSE(engine->run(inputs()));
  EXPECT_EQ(engine->report().state, "stalled");
  EXPECT_EQ(engine->report().late, 1U);
  EXPECT_FALSE(engine->is_used());
  EXPECT_FALSE(engine->run(inputs()));
  EXPECT_EQ(engine->report().late, 1U) << "it was not called again";
  *stalls = false;
  gate.set_value();
  while (!engine->is_used()) std::this_thread::yield();
  expect_own(engine->run(inputs(2)), inputs(2));
}

TEST_F(Engines, OneThatNeverComesBackDoesNotHoldUpTheEnd) {
  const auto stalls = std::make_shared<std::atomic<bool>>(false);
  std::promise<void> gate;
  auto engine = runs(
      [own = own(), stalls, open = gate.get_future().share()](std::span<const Value> inputs) {
        if (*stalls) open.wait();
        return own(inputs);
      },
      kQuick);
  *stalls = true;
  EXPECT_FALSE(engine->run(inputs()));
  engine.reset();
  gate.set_value();
}

TEST(Deviation, IsRelativeToTheLargestMagnitude) {
  const auto of = [](const std::vector<double>& a, const std::vector<double>& b) {
    return deviation_of(test::row(Dtype::kFloat64, a.size()), bytes_of_values(a), bytes_of_values(b));
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(of({1, -8, 3}, {1, -8, 3}), 0);
  EXPECT_DOUBLE_EQ(of({1, -8, 3}, {1.5, -8, 3}), 0.5 / 8);
  EXPECT_DOUBLE_EQ(of({1, -8, 3}, {1, -16, 3}), 0.5);
  EXPECT_EQ(of({kNan, kInfinity, -kInfinity, 0}, {kNan, kInfinity, -kInfinity, 0}), 0);
  EXPECT_EQ(of({kNan, 1}, {0, 1}), kInfinity);
  EXPECT_EQ(of({1, 1}, {kInfinity, 1}), kInfinity);
  EXPECT_EQ(of({kInfinity, 1}, {-kInfinity, 1}), kInfinity);
  EXPECT_EQ(of({}, {}), 0);
  EXPECT_EQ(of({0, 0}, {0, 1e-300}), 1);
}

TEST(Deviation, OfEveryDtype) {
  EXPECT_DOUBLE_EQ(deviation_of(test::row(Dtype::kFloat32, 2), bytes_of_values(std::vector<float>{4, 1}),
                                bytes_of_values(std::vector<float>{4, 2})),
                   0.25);
  // 1 and 2 as float16, and as bfloat16.
  for (const auto& [dtype, one, two] :
       {std::tuple(Dtype::kFloat16, 0x3c00, 0x4000), std::tuple(Dtype::kBfloat16, 0x3f80, 0x4000)}) {
    const auto a = bytes_of_values(std::vector<std::uint16_t>(3, static_cast<std::uint16_t>(two)));
    const auto b = bytes_of_values(std::vector<std::uint16_t>(3, static_cast<std::uint16_t>(one)));
    EXPECT_DOUBLE_EQ(deviation_of(test::row(dtype, 3), a, b), 0.5);
  }
  EXPECT_DOUBLE_EQ(deviation_of(test::row(Dtype::kInt64, 4), bytes_of_values(std::vector<std::int64_t>{1, 2, 3, 4}),
                                bytes_of_values(std::vector<std::int64_t>{1, 2, 900, 4})),
                   0.25);
}

TEST(MadeInputs, AreTheSameForTheSameSeedAndWithinTheirRange) {
  test::Builder builder;
  for (const Dtype dtype : test::kEveryDtype) builder.input({7, 11}, dtype);
  const Graph& graph = builder.graph();
  const std::vector<HostBytes> made = made_inputs(graph, 5);
  const std::vector<HostBytes> again = made_inputs(graph, 5);
  const std::vector<HostBytes> other = made_inputs(graph, 6);
  ASSERT_EQ(made.size(), test::kEveryDtype.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Tensor& type = graph.tensors[static_cast<std::size_t>(graph.inputs[i])];
    const test::ByteVector bytes(made[i].bytes.begin(), made[i].bytes.end());
    EXPECT_EQ(bytes.size(), static_cast<std::size_t>(type.bytes()));
    EXPECT_EQ(bytes, test::ByteVector(again[i].bytes.begin(), again[i].bytes.end()));
    EXPECT_EQ(bytes == test::ByteVector(other[i].bytes.begin(), other[i].bytes.end()), type.dtype == Dtype::kBool);
    // No element is above 1, so zeros deviate by at most 1.
    if (is_floating(type.dtype)) {
      EXPECT_EQ(deviation_of(type, bytes, test::ByteVector(bytes.size())), 1);
    }
  }
  for (const double each : test::values_of<double>(made[3].bytes)) EXPECT_LE(std::fabs(each), 1);
  for (const std::int64_t each : test::values_of<std::int64_t>(made[7].bytes)) EXPECT_TRUE(each == 0 || each == 1);
  for (const std::byte each : made[9].bytes) EXPECT_EQ(each, std::byte{1});
}

}  // namespace
}  // namespace atl::infer
