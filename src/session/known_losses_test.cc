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
  EXPECT_TRUE(says("casq:bits=1", TrainedWith::adam, "0.7"));
  EXPECT_TRUE(says("marsit", TrainedWith::momentum, "0.7"));
  EXPECT_TRUE(says("marsit:full_every=9223372036854775807", TrainedWith::adam, "0.4"));
  EXPECT_TRUE(says("rows=zen,dense=ef_signsgd", TrainedWith::adam, "1.1"));
  EXPECT_TRUE(says("marsit:full_every=2", TrainedWith::adam, "0.3"));
  EXPECT_TRUE(says("power_sgd", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("power_sgd:rank=12:step=0.5", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("acp_sgd:rank=32:bits=8", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("ecsq:local=0.5", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("klt:step=2", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("one_bit_adam", TrainedWith::adam, "0.4"));
  EXPECT_NE(known_loss("one_bit_adam", TrainedWith::adam).find("as in clip:norm=1+one_bit_adam, "),
            std::string::npos);
  EXPECT_EQ(known_loss("casq", TrainedWith::adam).find("clip:norm"), std::string::npos);
  EXPECT_TRUE(says("zero_one_adam", TrainedWith::adam, "1.0"));
  EXPECT_TRUE(says("warm_up:steps=50+zero_one_adam", TrainedWith::adam, "0.4"));
  EXPECT_TRUE(says("clip+warm_up:steps=50+casq", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("decay:factor=0.99+top_k:ratio=0.01+zen", TrainedWith::adam, "0.7"));
  for (const char* kept : {"power_sgd:rank=15:bits=8", "power_sgd:rank=20:step=0.3", "acp_sgd:rank=64",
                           "ecsq", "ecsq:local=0.75", "klt:step=0.7", "warm_up:steps=50+klt:step=2",
                           "clip+one_bit_adam", "clip+warm_up:steps=50+zero_one_adam"}) {
    EXPECT_EQ(known_loss(kept, TrainedWith::adam), "") << kept;
  }
  for (const char* kept :
       {"dense", "half", "power_sgd:rank=4", "top_k:ratio=0.05+zen", "marsit:full_every=8", "ecsq:local=0"}) {
    EXPECT_EQ(known_loss(kept, TrainedWith::momentum), "") << kept;
  }
  for (const char* unmeasured :
       {"casq:bits=3", "casq:bits=4:topology=all_gather", "casq:downlink=float32", "top_k:ratio=0.2+zen",
        "top_k:k=9+zen", "sketched_sgd:k=9", "marsit:full_every=0", "marsit:full_above=1"}) {
    EXPECT_EQ(known_loss(unmeasured, TrainedWith::adam), "") << unmeasured;
  }
}

TEST(KnownLosses, GoByTheStagesInFront) {
  EXPECT_TRUE(says("warm_up:steps=30+casq", TrainedWith::adam, "0.1"));
  EXPECT_TRUE(says("warm_up:steps=9+casq", TrainedWith::adam, "0.7"));
  EXPECT_TRUE(says("warm_up+top_k:ratio=0.01:ramp_steps=60+zen", TrainedWith::adam, "0.1"));
  EXPECT_EQ(known_loss("warm_up+top_k:ratio=0.01+zen", TrainedWith::adam), "");
  EXPECT_NE(known_loss("warm_up+casq", TrainedWith::adam).find("after a warm-up"), std::string::npos);
  EXPECT_EQ(known_loss("warm_up+casq:bits=4", TrainedWith::adam), "");
  EXPECT_EQ(known_loss("warm_up+casq", TrainedWith::momentum), "");  // not measured
  EXPECT_TRUE(says("clip+casq", TrainedWith::adam, "0.2"));
  EXPECT_NE(known_loss("clip+casq", TrainedWith::adam).find("clipped first"), std::string::npos);
  EXPECT_EQ(known_loss("clip+casq:bits=4", TrainedWith::adam), "");
  EXPECT_EQ(known_loss("clip+ef_signsgd", TrainedWith::adam), "");  // not measured
  EXPECT_EQ(known_loss("decay+top_k:ratio=0.01+zen", TrainedWith::momentum), "");
  EXPECT_EQ(known_loss("clip+casq", TrainedWith::momentum), "");
  for (const std::string stage : {"guard", "momentum", "decay", "whole"}) {
    EXPECT_EQ(known_loss(stage + "+casq", TrainedWith::adam), "") << stage;
  }
  EXPECT_THROW(known_loss("nosuch", TrainedWith::adam), std::invalid_argument);
}

TEST(UnmeasuredLosses, AreTheSystemsThatLeaveSomethingOut) {
  for (const char* lossy : {"auto", "casq", "power_sgd:rank=32:bits=8", "rows=zen,dense=klt",
                            "warm_up:steps=5+ecsq", "top_k+zen", "guard+marsit"}) {
    const std::string line = unmeasured_loss(lossy, "Lion");
    EXPECT_EQ(line.rfind("spec '" + std::string(lossy) + "': ", 0), 0u) << line;
    EXPECT_NE(line.find(" under Lion. "), std::string::npos) << line;
  }
  for (const char* kept : {"auto:lossless", "dense", "zen", "half", "half:format=bf16:feedback=on",
                           "rows=zen,dense=half", "warm_up:steps=5+dense"}) {
    EXPECT_EQ(unmeasured_loss(kept, "Lion"), "") << kept;
  }
  EXPECT_THROW(unmeasured_loss("klty", "Lion"), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire
