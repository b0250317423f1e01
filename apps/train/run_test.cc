#include "apps/train/run.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace thinwire::train {
namespace {

std::string refusal(OptimizerKind optimizer, double momentum, const std::string& spec, double clip = 0) {
  Options options;
  options.optimizer = optimizer;
  options.momentum = momentum;
  options.clip = clip;
  options.specs = {spec};
  try {
    run(options);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Run, RefusesAnOptimizerWithAnotherMomentumThanTheSystemNeeds) {
  const std::string beta = refusal(OptimizerKind::adamw, 0, "one_bit_adam:beta1=0.8");
  EXPECT_NE(beta.find("beta1=0.8 must be AdamW's beta1, which is 0.9"), std::string::npos) << beta;
  const std::string inside = refusal(OptimizerKind::sgd, 0.8, "rows=zen,dense=momentum+casq");
  EXPECT_NE(inside.find("momentum=0.9 must be --momentum, which is 0.8"), std::string::npos) << inside;
  for (const char* spec : {"mc+top_k:k=5+zen", "demo", "sketched_sgd:momentum=0.5"}) {
    const std::string twice = refusal(OptimizerKind::sgd, 0.9, spec);
    EXPECT_NE(twice.find("applies momentum itself, and --momentum 0.9"), std::string::npos) << twice;
    const std::string adam = refusal(OptimizerKind::adamw, 0, spec);
    EXPECT_NE(adam.find("AdamW's beta1 of 0.9 would come on top: give --optimizer sgd"), std::string::npos)
        << adam;
  }
}

TEST(Run, RefusesToClipWhatMustArriveAsItIs) {
  for (const char* spec : {"one_bit_adam", "zero_one_adam", "momentum+casq", "clip+casq"}) {
    const std::string clipped = refusal(OptimizerKind::adamw, 0, spec, 1);
    EXPECT_NE(clipped.find("--clip 1 would change the mean"), std::string::npos) << clipped;
    EXPECT_NE(clipped.find("give --clip 0"), std::string::npos) << clipped;
  }
  const std::string signs = refusal(OptimizerKind::sgd, 0, "demo", 0.5);
  EXPECT_NE(signs.find("--clip 0.5 would change the mean that demo delivers"), std::string::npos) << signs;
}

}  // namespace
}  // namespace thinwire::train
