#include "apps/train/run.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace thinwire::train {
namespace {

std::string refusal(OptimizerKind optimizer, double momentum, const std::string& spec) {
  Options options;
  options.optimizer = optimizer;
  options.momentum = momentum;
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
  }
}

}  // namespace
}  // namespace thinwire::train
