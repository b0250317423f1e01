#include "thinwire/known_losses.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace thinwire {
namespace {

bool says(const std::string& spec, TrainedWith optimizer, const std::string& nats) {
  const std::string line = known_loss(spec, optimizer);
  return line.find(" about " + nats + " nats above dense's") != std::string::npos;
}

TEST(KnownLosses, GoByTheSystemItsOptionsAndTheOptimizer) {
  EXPECT_TRUE(says("casq", TrainedWith::adam, "0.7")) << known_loss("casq", TrainedWith::adam);
  EXPECT_EQ(known_loss("casq", TrainedWith::adam).rfind("casq with Adam: ", 0), 0u);
  EXPECT_TRUE(says("casq:bits=4", TrainedWith::momentum, "0.1"));
  EXPECT_TRUE(says("casq:topology=all_gather", TrainedWith::momentum, "0.4"));
  EXPECT_TRUE(says("top_k:ratio=0.05+zen", TrainedWith::adam, "0.5"));
  EXPECT_TRUE(says("marsit", TrainedWith::momentum, "0.7"));
  EXPECT_TRUE(says("rows=zen,dense=ef_signsgd", TrainedWith::adam, "1.1"));
  for (const char* kept :
       {"dense", "half", "power_sgd:rank=4", "top_k:ratio=0.05+zen", "marsit:full_every=8"}) {
    EXPECT_EQ(known_loss(kept, TrainedWith::momentum), "") << kept;
  }
}

TEST(KnownLosses, GoByTheStagesInFront) {
  EXPECT_TRUE(says("warm_up:steps=9+casq", TrainedWith::adam, "0.1"));
  EXPECT_NE(known_loss("warm_up+casq", TrainedWith::adam).find("after a warm-up"), std::string::npos);
  EXPECT_EQ(known_loss("warm_up+casq:bits=4", TrainedWith::adam), "");
  EXPECT_EQ(known_loss("warm_up+casq", TrainedWith::momentum), "");  // not measured
  EXPECT_EQ(known_loss("guard+casq", TrainedWith::adam), "");
  EXPECT_THROW(known_loss("nosuch", TrainedWith::adam), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire
