#include "models.h"

#include <gtest/gtest.h>

#include <thread>

#include "agreement.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

TEST(Models, HaveTheSizesTheyAreKnownFor) {
  EXPECT_EQ(count_parameters(*make_model("cnn", {1, 28, 28, 10}, 1)), 794310u);
  EXPECT_EQ(count_parameters(*make_model("cnn", {3, 32, 32, 10}, 1)), 448u + 4640 + 2048 * 500 + 500 + 5010);
  EXPECT_EQ(count_parameters(*make_model("resnet20", {3, 32, 32, 10}, 1)),
            269722u);  // He et al., table 6: 0.27M
}

TEST(Models, ClassifyImagesOfBothDataSets) {
  for (const auto& name : known_models()) {
    for (const ModelShape& shape : {ModelShape{1, 28, 28, 10}, ModelShape{3, 32, 32, 10}}) {
      const auto model = make_model(name, shape, 1);
      const auto logits = model->forward(torch::rand({3, shape.channels, shape.height, shape.width}));
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 10})) << name;
    }
  }
}

TEST(Models, StartFromTheirSeedEvenWhenBuiltAtTheSameTime) {
  const std::uint64_t wanted = hash_model(*make_model("resnet20", {3, 32, 32, 10}, 7));
  EXPECT_NE(wanted, hash_model(*make_model("resnet20", {3, 32, 32, 10}, 8)));
  std::vector<std::uint64_t> hashes(4);
  std::vector<std::thread> threads;
  for (auto& hash : hashes) {
    threads.emplace_back([&hash] { hash = hash_model(*make_model("resnet20", {3, 32, 32, 10}, 7)); });
  }
  for (auto& thread : threads) thread.join();
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, wanted);
}

TEST(Models, UnknownNamesListTheKnown) {
  try {
    make_model("vgg", {}, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown model 'vgg'; known: cnn, resnet20");
  }
}

TEST(Agreement, BroadcastMakesModelsEqual) {
  run_in_process(3, [](Communicator& communicator) {
    const auto model = make_model("cnn", {}, static_cast<std::uint64_t>(communicator.rank()));
    broadcast_model(*model, communicator);
    EXPECT_EQ(require_agreement(*model, communicator, "test"), hash_model(*make_model("cnn", {}, 0)));
  });
}

TEST(Agreement, NamesTheRanksThatDiffer) {
  run_in_process(4, [](Communicator& communicator) {
    const auto model = make_model("cnn", {}, communicator.rank() % 2 == 0 ? 1u : 2u);
    try {
      require_agreement(*model, communicator, "dense after epoch 1");
      ADD_FAILURE();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).rfind("dense after epoch 1: ranks 1, 3 of 4 hold another model", 0),
                0u)
          << error.what();
    }
  });
}

TEST(Agreement, BuffersBecomeTheirMean) {
  run_in_process(3, [](Communicator& communicator) {
    const auto model = make_model("resnet20", {}, 1);
    const torch::Tensor mean = model->named_buffers()["bn.running_mean"];
    mean.fill_(communicator.rank());
    average_buffers(*model, communicator);
    for (std::int64_t i = 0; i < mean.numel(); ++i) EXPECT_EQ(mean[i].item<float>(), 1.0f);
    require_agreement(*model, communicator, "test");
  });
}

}  // namespace
}  // namespace thinwire::train
