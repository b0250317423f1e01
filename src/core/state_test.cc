#include "thinwire/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "core/bucket_vectors.h"
#include "kernels/test_executors.h"

namespace thinwire::state_test {
namespace {

constexpr StateKind kEta = {.name = "eta", .unit = StateKind::Unit::gradient};
constexpr StateKind kFactor = {.name = "factor"};
constexpr StateKind kVelocity = {
    .name = "velocity", .unit = StateKind::Unit::gradient, .ranks = StateKind::Ranks::mean};

std::string written(const StateWriter& writer) {
  std::ostringstream stream;
  writer.write(stream);
  return stream.str();
}

StateReader read(const std::string& bytes) {
  std::istringstream stream(bytes);
  return StateReader(stream);
}

StateWriter sample() {
  StateWriter writer;
  const std::vector<float> values = {1.5f, -0.0f, std::numeric_limits<float>::denorm_min(), 3e38f};
  writer.put("a/floats", Span<const float>(values));
  writer.put("a/none", Span<const float>());
  writer.put("b/count", std::uint64_t{1} << 60);
  writer.put("b/real", 0.1);
  writer.put("c/text", std::string_view("spec:x=1"));
  return writer;
}

TEST(State, EveryBitComesBack) {
  const StateReader reader = read(written(sample()));
  std::vector<float> values(4);
  reader.get("a/floats", values);
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_TRUE(std::signbit(values[1]));
  EXPECT_EQ(values[2], std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(reader.length("a/none"), 0u);
  EXPECT_EQ(reader.get_integer("b/count"), std::uint64_t{1} << 60);
  EXPECT_EQ(reader.get_real("b/real"), 0.1);
  EXPECT_EQ(reader.get_text("c/text"), "spec:x=1");
  EXPECT_EQ(reader.names("a/"), (std::vector<std::string>{"a/floats", "a/none"}));
}

TEST(State, DamageIsNoticedWhereverItIs) {
  const std::string good = written(sample());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(read(good.substr(0, size)), std::runtime_error) << "cut at " << size;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    EXPECT_THROW(read(bad), std::runtime_error) << "byte " << at;
  }
}

TEST(State, WrongNamesTypesAndLengthsAreNamed) {
  const StateReader reader = read(written(sample()));
  std::vector<float> three(3);
  EXPECT_THROW(reader.get("a/floats", three), std::runtime_error);
  EXPECT_THROW(reader.get_integer("a/floats"), std::runtime_error);
  EXPECT_THROW(reader.get_text("missing"), std::runtime_error);
  StateWriter writer;
  writer.put("x", 1.0);
  EXPECT_THROW(writer.put("x", 2.0), std::invalid_argument);
}

TEST(State, TakesOverAnotherWriter) {
  StateWriter whole, other;
  whole.put("step", std::uint64_t{3});
  whole.put("a", 1.0);
  other.put("step", std::uint64_t{3});
  other.put("b", std::string_view("text"));
  whole.absorb(std::move(other));
  StateWriter different;
  different.put("c", 2.0);
  different.put("step", std::uint64_t{4});
  EXPECT_THROW(whole.absorb(std::move(different)), std::invalid_argument);
  const StateReader reader(std::move(whole));
  EXPECT_EQ(reader.names(""), (std::vector<std::string>{"a", "b", "step"}));
  EXPECT_EQ(reader.type("a"), StateReader::Type::real);
  EXPECT_EQ(reader.type("b"), StateReader::Type::text);
  EXPECT_EQ(reader.get_integer("step"), 3u);
  EXPECT_THROW(reader.type("c"), std::runtime_error);
}

TEST(BucketState, SaysWhatItIs) {
  const std::vector<BucketLayout> layouts = {{{"a", 2}, {"b", 1}}, {{"c", 1}}};
  const std::vector<float> three = {1, 2, 3};
  StateWriter writer;
  BucketWriter buckets(writer, layouts);
  buckets.elements(kResidual, 0, Span<const float>(three));
  buckets.values(kVelocity, 0, Span<const float>(three).first(2));
  buckets.array(kFactor, 1, 0, three);
  StateKind other = kFactor;
  other.moves = true;
  EXPECT_THROW(buckets.array(other, 0, 0, three), std::invalid_argument);
  const StateReader reader = read(written(writer));
  EXPECT_EQ(reader.declaration("residual"), kResidual);
  EXPECT_EQ(reader.declaration("velocity"), kVelocity);
  EXPECT_EQ(reader.declaration("factor"), kFactor);
  EXPECT_EQ(reader.declaration("eta"), std::nullopt);
  StateWriter strange;
  strange.put("kind/eta", std::string_view("unit=metre ranks=same moves=no"));
  EXPECT_THROW(StateReader(std::move(strange)).declaration("eta"), std::runtime_error);
}

TEST(BucketState, SurvivesAnotherGrouping) {
  const std::vector<BucketLayout> before = {{{"w1", 3}, {"b1", 1}}, {{"w2", 2}}};
  const auto executor = make_cpu_executor(1);
  BucketVectors residuals(kResidual);
  const auto first = residuals.open(*executor, 0, 4);
  const auto second = residuals.open(*executor, 1, 2);
  for (std::size_t i = 0; i < 4; ++i) first[i] = static_cast<float>(i);
  second[0] = 10;
  second[1] = 11;
  StateWriter state;
  BucketWriter writer(state, before);
  residuals.save(writer);
  const std::vector<float> eta = {0.25f};
  writer.values(kEta, 1, eta);

  const StateReader stored = read(written(state));
  const std::vector<BucketLayout> after = {{{"w2", 2}, {"b1", 1}}, {{"w1", 3}}};
  const BucketReader reader(stored, after);
  std::vector<float> regrouped(3);
  EXPECT_TRUE(reader.elements(kResidual, 0, regrouped));
  EXPECT_EQ(regrouped, (std::vector<float>{10, 11, 3}));
  std::vector<float> none(1);
  EXPECT_FALSE(reader.values(kEta, 1, none));
  std::vector<float> both(2);
  EXPECT_FALSE(reader.values(kEta, 0, both)) << "b1 has none";
  EXPECT_FALSE(reader.elements(kVelocity, 0, regrouped));

  const std::vector<BucketLayout> unknown = {{{"w1", 3}, {"new", 1}}};
  std::vector<float> four(4);
  EXPECT_THROW(BucketReader(stored, unknown).elements(kResidual, 0, four), std::runtime_error);
  four.assign(4, -1.0f);
  EXPECT_TRUE(BucketReader(stored, unknown).elements(kResidual, 0, four, BucketReader::Absent::zeros));
  EXPECT_EQ(four, (std::vector<float>{0, 1, 2, 0}));
}

TEST(BucketState, ArraysBelongToParameters) {
  const std::vector<BucketLayout> before = {{{"w1", 6, 2}, {"b1", 1}}};
  StateWriter state;
  BucketWriter writer(state, before);
  const std::vector<float> factor = {1, 2, 3};
  writer.array(kFactor, 0, 0, factor);

  const StateReader stored = read(written(state));
  const std::vector<BucketLayout> after = {{{"b1", 1}}, {{"w1", 6, 2}}};
  const BucketReader reader(stored, after);
  EXPECT_EQ(reader.parameter(1, 0).rows, 2u);
  std::vector<float> three(3);
  EXPECT_FALSE(reader.array(kFactor, 0, 0, three)) << "b1 has none";
  EXPECT_TRUE(reader.array(kFactor, 1, 0, three));
  EXPECT_EQ(three, factor);
  std::vector<float> four(4);
  EXPECT_THROW(reader.array(kFactor, 1, 0, four), std::runtime_error);
  EXPECT_FALSE(BucketReader(stored, after, {true, false}).array(kFactor, 1, 0, three)) << "not visible";
}

TEST(BucketVectors, KeepTheirSize) {
  const auto executor = make_cpu_executor(1);
  BucketVectors vectors(kResidual);
  EXPECT_TRUE(vectors.find(0).empty());
  EXPECT_EQ(vectors.open(*executor, 0, 5).size(), 5u);
  EXPECT_THROW(vectors.open(*executor, 0, 6), std::invalid_argument);
}

class InTurn : public testing::Test {
 protected:
  /// A step that leaves this value everywhere.
  void turn_to(float value) {
    const Span<float> next = vectors.next(0);
    ASSERT_EQ(next.size(), 3u);
    EXPECT_NE(next.data(), vectors.find(0).data());
    std::fill(next.begin(), next.end(), value);
    vectors.turn(0);
  }
  std::vector<float> values() const {
    const Span<const float> now = vectors.find(0);
    return {now.begin(), now.end()};
  }
  static std::vector<float> threes(float value) { return std::vector<float>(3, value); }

  std::unique_ptr<Executor> executor = make_cpu_executor(1);
  BucketVectors vectors{kResidual};
};

TEST_F(InTurn, AStepIsUndoneWhollyOrInPart) {
  vectors.open(*executor, 0, 3);
  EXPECT_TRUE(vectors.next(0).empty()) << "nothing was kept: the first step changes in place";
  vectors.keep_in_turn(0);
  turn_to(1);
  EXPECT_EQ(values(), threes(1));
  EXPECT_TRUE(vectors.next(0).empty()) << "a second change in this step goes on in place";
  vectors.undo(0);
  EXPECT_EQ(values(), threes(0));

  vectors.keep_in_turn(0);
  turn_to(2);
  vectors.keep_in_turn(0);
  vectors.undo(0);
  EXPECT_EQ(values(), threes(2)) << "what was kept last stays";
  turn_to(3);
  vectors.undo(0, 1, 2);
  EXPECT_EQ(values(), (std::vector<float>{3, 2, 2}));
}

TEST_F(InTurn, WhatWasKeptOutlivesErasingAndLoading) {
  vectors.open(*executor, 0, 3);
  vectors.keep_in_turn(0);
  turn_to(4);
  vectors.keep_in_turn(0);
  vectors.erase(0);
  EXPECT_TRUE(vectors.find(0).empty());
  vectors.undo(0);
  EXPECT_EQ(values(), threes(4));

  vectors.keep_in_turn(0);
  vectors.load(BucketReader(StateReader(StateWriter()), {{{"a", 3}}}));
  vectors.undo(0);
  EXPECT_EQ(values(), threes(4));
  vectors.keep(0);
  EXPECT_TRUE(vectors.next(0).empty()) << "a copy lies apart";
}

TEST(BucketVectors, GoFromOneMemoryToAnother) {
  const std::vector<BucketLayout> layouts = {{{"a", 3}, {"b", 2}}, {{"c", 4}}};
  for_each_executor([&](Executor& from, const std::string& saved_on) {
    BucketVectors vectors(kVelocity);
    const std::vector<float> kept = {1, 2, 3, 4, 5};
    copy(from, Span<const float>(kept), vectors.open(from, 0, 5));
    StateWriter writer;
    BucketWriter saved(writer, layouts);
    vectors.save(saved);
    const StateReader state(std::move(writer));
    for_each_executor([&](Executor& to, const std::string& loaded_on) {
      BucketVectors loaded(kVelocity);
      loaded.load(BucketReader(state, layouts));
      std::vector<float> values(5), untouched(4, 1.0f);
      copy(to, Span<const float>(loaded.open(to, 0, 5)), Span<float>(values));
      EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5})) << saved_on << " to " << loaded_on;
      copy(to, Span<const float>(loaded.open(to, 1, 4)), Span<float>(untouched));
      EXPECT_EQ(untouched, std::vector<float>(4));
    });
  });
}

}  // namespace
}  // namespace thinwire::state_test
