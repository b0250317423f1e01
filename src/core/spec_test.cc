#include <gtest/gtest.h>

#include <string>

#include "thinwire/registry.h"

namespace thinwire::spec_test {
namespace {

/// The message of the invalid_argument that `body` throws; fails the test if it throws none.
template <class Body>
std::string complaint(Body body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

class Nothing final : public Synchronizer {
 public:
  void synchronize(BucketId, Span<float>, Span<float>, Step&) override {}
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
};

SystemInfo system_info(const std::string& name, bool delivers_all, bool stage) {
  SystemInfo info;
  info.name = name;
  info.delivers_all = delivers_all;
  info.stage = stage;
  info.corrects_momentum = stage;
  info.options = {{"rate", "0.5", "a rate"}, {"count", "3", "a count"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    options.real("rate", 0, 1);
    options.integer("count", 0, 10);
    return std::make_unique<Nothing>();
  };
  return info;
}

Registry test_registry() {
  Registry registry;
  registry.add(system_info("whole", true, false));
  registry.add(system_info("sparse", false, false));
  registry.add(system_info("stage", true, true));
  return registry;
}

TEST(Spec, PartsAndOptions) {
  const auto parts = parse_spec("mc:momentum=0.9+top_k:density=0.01:sample=1");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "mc");
  EXPECT_EQ(parts[1].name, "top_k");
  ASSERT_EQ(parts[1].options.size(), 2u);
  EXPECT_EQ(parts[1].options[1], (std::pair<std::string, std::string>{"sample", "1"}));
}

TEST(Spec, AValueMayHaveColons) {
  const auto parts = parse_spec("auto:link=1Gbit:50us:steps=2");
  ASSERT_EQ(parts[0].options.size(), 2u);
  EXPECT_EQ(parts[0].options[0], (std::pair<std::string, std::string>{"link", "1Gbit:50us"}));
  EXPECT_EQ(parts[0].options[1], (std::pair<std::string, std::string>{"steps", "2"}));
}

TEST(Spec, AnOptionAloneIsOn) {
  const auto parts = parse_spec("auto:budget=1:lossless+dense:a");
  ASSERT_EQ(parts[0].options.size(), 2u);
  EXPECT_EQ(parts[0].options[1], (std::pair<std::string, std::string>{"lossless", "on"}));
  EXPECT_EQ(parts[1].options[0], (std::pair<std::string, std::string>{"a", "on"}));
}

TEST(Spec, MalformedSpecsAreRefused) {
  for (const char* spec : {"", "+dense", "dense+", "a:1", "a:", "a:b:b=on", "a:=1", "a:b=", "a:b=1:b=2",
                           "a:b=1:", "a:b=1:=2", ":x=1"}) {
    EXPECT_THROW(parse_spec(spec), std::invalid_argument) << spec;
  }
  EXPECT_THROW(split_specs("a,,b"), std::invalid_argument);
  EXPECT_THROW(split_specs(""), std::invalid_argument);
  EXPECT_EQ(split_specs("a:x=1,b"), (std::vector<std::string>{"a:x=1", "b"}));
}

TEST(Registry, UnknownNamesAndOptionsListTheKnownOnes) {
  const Registry registry = test_registry();
  const auto name = complaint([&] { registry.make("hole"); });
  EXPECT_NE(name.find("'hole'"), std::string::npos) << name;
  EXPECT_NE(name.find("whole sparse stage"), std::string::npos) << name;
  const auto option = complaint([&] { registry.make("whole:rat=1"); });
  EXPECT_NE(option.find("rate, count, feedback"), std::string::npos) << option;
}

TEST(Spec, AnOptionBehindACommaIsToldToFollowAColon) {
  const auto of_list = complaint([] { split_specs("whole,sparse,rate=1,stage"); });
  EXPECT_NE(of_list.find("write 'sparse:rate=1'"), std::string::npos) << of_list;
  for (const char* pair : {"sparse,rate=1", "rows=whole,dense=sparse,rate=1", "rows=sparse,rate=1"}) {
    const auto text = complaint([&] { parse_spec_pair(pair); });
    EXPECT_NE(text.find("sparse:rate=1'"), std::string::npos) << text;
  }
  for (const char* pair : {"rows=whole, dense=sparse", "dense=whole,row=sparse"}) {
    const auto text = complaint([&] { parse_spec_pair(pair); });
    EXPECT_NE(text.find("or rows=SPEC,dense=SPEC"), std::string::npos) << text;
  }
  EXPECT_EQ(split_specs("rows=whole,dense=sparse:rate=1,stage"),
            (std::vector<std::string>{"rows=whole,dense=sparse:rate=1", "stage"}));
}

TEST(Spec, AnEmptySpecSaysWhatToWrite) {
  for (const char* pair : {"", "rows=,dense=whole", "rows=whole,dense="}) {
    const auto text = complaint([&] { test_registry().canonical(pair); });
    EXPECT_NE(text.find("the spec is empty; write NAME:OPTION=VALUE"), std::string::npos) << text;
  }
  EXPECT_NE(complaint([] { split_specs(""); }).find("the spec is empty"), std::string::npos);
}

TEST(Registry, WhatWasMisspeltIsGuessed) {
  const Registry registry = test_registry();
  EXPECT_NE(complaint([&] { registry.make("whol"); }).find("did you mean 'whole'?"), std::string::npos);
  EXPECT_NE(complaint([&] { registry.make("whole:rat=1"); }).find("did you mean 'rate'?"), std::string::npos);
  EXPECT_NE(complaint([&] { registry.make("whole rate=1"); }).find("without blanks"), std::string::npos);
  EXPECT_EQ(complaint([&] { registry.make("another"); }).find("did you mean"), std::string::npos);
}

TEST(Spec, ACommandLineIsNoPartOfIt) {
  for (const char* spec :
       {"stage+whole --clip 0", "whole:rate=0.5 --clip=0", "rows=whole,dense=sparse --clip 0"}) {
    const auto text = complaint([&] { test_registry().canonical(spec); });
    EXPECT_NE(text.find("--clip and what follows are options of `thinwire train`"), std::string::npos)
        << text;
  }
}

TEST(Registry, AShortSpecLeavesDefaultsOut) {
  const Registry registry = test_registry();
  for (const char* spec :
       {"whole", "sparse:count=4", "stage:rate=1+sparse", "rows=whole,dense=sparse:rate=0.25"}) {
    EXPECT_EQ(registry.shortened(registry.canonical(spec)), spec);
  }
  EXPECT_EQ(registry.shortened("whole:rate=0.5:count=3"), "whole");
  EXPECT_THROW(registry.shortened("whole:rat=1"), std::invalid_argument);
  EXPECT_EQ(registry.readable("whole:rate=0.5:count=4"), "whole:count=4");
  EXPECT_EQ(registry.readable("whole:rat=1"), "whole:rat=1");
}

TEST(Registry, ValuesOutOfRangeNameTheRange) {
  const Registry registry = test_registry();
  for (const char* spec :
       {"whole:rate=2", "whole:rate=x", "whole:count=-1", "whole:count=3.5", "whole:count=11",
        "whole:rate=nan", "whole:feedback=maybe", "whole:count=99999999999999999999"}) {
    EXPECT_NE(complaint([&] { registry.make(spec); }).find("must be"), std::string::npos) << spec;
  }
  EXPECT_NO_THROW(registry.make("whole:rate=1:count=10"));
}

TEST(Registry, CanonicalSpecNamesEveryOption) {
  const Registry registry = test_registry();
  EXPECT_EQ(registry.make("whole:count=4").spec, "whole:rate=0.5:count=4:feedback=off");
  EXPECT_EQ(registry.make("stage+sparse").spec,
            "stage:rate=0.5:count=3+sparse:rate=0.5:count=3:feedback=off");
  EXPECT_TRUE(registry.make("sparse:feedback=on").feedback);
}

TEST(Registry, CombinationsWithoutMeaningSayWhy) {
  const Registry registry = test_registry();
  EXPECT_NE(complaint([&] { registry.make("stage"); }).find("put a system behind it"), std::string::npos);
  EXPECT_NE(complaint([&] { registry.make("whole+sparse"); }).find("not a stage"), std::string::npos);
  EXPECT_NE(complaint([&] { registry.make("stage+stage+sparse"); }).find("keep one"), std::string::npos);
  EXPECT_NE(complaint([&] { registry.make("stage+whole"); }).find("delivers every element"),
            std::string::npos);
}

TEST(Registry, NamesAreUnique) {
  Registry registry = test_registry();
  EXPECT_THROW(registry.add(system_info("whole", true, false)), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::spec_test
