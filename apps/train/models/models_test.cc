#include "apps/train/models/models.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "apps/train/agreement.h"
#include "tests/tapped_communicator.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

const ModelShape kGrey;                                              // Fashion-MNIST's
const ModelShape kColour{.channels = 3, .height = 32, .width = 32};  // CIFAR-10's
const ModelShape kWords{.input = Input::words, .classes = 50};
const ModelShape kCategories{.input = Input::categories, .classes = 2, .fields = 5, .table_rows = 70};

TEST(Models, HaveTheSizesTheyAreKnownFor) {
  EXPECT_EQ(count_parameters(*make_model("cnn", kGrey, 1)), 794310u);
  EXPECT_EQ(count_parameters(*make_model("cnn", kColour, 1)), 448u + 4640 + 2048 * 500 + 500 + 5010);
  EXPECT_EQ(count_parameters(*make_model("resnet20", kColour, 1)),
            269722u);  // He et al., table 6: 0.27M
  // Convolutions, two values per normalised channel, the classes.
  EXPECT_EQ(count_parameters(*make_model("resnet9", kColour, 1)),
            9u * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512) +
                2 * (64 + 3 * 128 + 256 + 3 * 512) + 512 * 10);
  // The Marsit paper, table 2: 23M.
  EXPECT_EQ(count_parameters(*make_model("alexnet", kColour, 1)),
            (27u + 1) * 64 + (9 * 64 + 1) * 192 + (9 * 192 + 1) * 384 + (9 * 384 + 1) * 256 +
                (9 * 256 + 1) * 256 + (4 * 256 + 1) * 4096 + 4097 * 4096 + 4097 * 10);
  // Embedding, LSTM of four gates with torch's two biases, softmax.
  EXPECT_EQ(count_parameters(*make_model("lstm", kWords, 1)),
            50u * 128 + 4 * 128 * (128 + 128 + 2) + 50 * 129);
  // Per row a weight and 16 factors; the perceptron of 5 * 16 -> 64 -> 64 -> 1; the bias.
  EXPECT_EQ(count_parameters(*make_model("deepfm", kCategories, 1)), 70u * 17 + 81 * 64 + 65 * 64 + 65 + 1);
}

TEST(Models, ClassifyImagesOfBothDataSets) {
  for (const std::string name : {"cnn", "resnet20", "resnet9", "alexnet"}) {
    for (const ModelShape& shape : {kGrey, kColour}) {
      const auto model = make_model(name, shape, 1);
      const auto logits = model->forward(torch::rand({3, shape.channels, shape.height, shape.width}));
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 10})) << name;
    }
  }
}

TEST(Models, ForetellEveryNextWord) {
  for (const std::string name : {"lstm", "transformer"}) {
    const auto model = make_model(name, kWords, 1);
    const torch::Tensor words = torch::randint(50, {3, 7}, torch::kInt64);
    const torch::Tensor logits = model->forward(words);
    EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{21, 50}));
    // What comes later changes nothing before it; what came first changes all that follows.
    torch::Tensor other = words.clone();
    other[0][6] = (other[0][6] + 1) % 50;
    other[1][0] = (other[1][0] + 1) % 50;
    const torch::Tensor others = model->forward(other);
    EXPECT_TRUE(torch::equal(others.narrow(0, 0, 6), logits.narrow(0, 0, 6))) << name;
    EXPECT_FALSE(torch::equal(others[6], logits[6])) << name;
    EXPECT_FALSE(torch::equal(others[13], logits[13])) << name;
    EXPECT_TRUE(torch::equal(others.narrow(0, 14, 7), logits.narrow(0, 14, 7))) << name;
  }
}

TEST(Models, ATransformerHasTheSizesThatItIsGiven) {
  // One table for reading and foretelling, places, and of each block two norms and four linear layers.
  const std::uint64_t block = 4 * 32 + 32 * 96 + 96 + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32;
  EXPECT_EQ(count_parameters(*make_model("transformer", kWords, 1, {.layers = 2, .width = 32, .heads = 8})),
            50u * 32 + 32 * 32 + 2 * block + 2 * 32);
  EXPECT_EQ(row_sparse_parameters(*make_model("transformer", kWords, 1)), std::set<std::string>{});
  EXPECT_THROW(make_model("transformer", kWords, 1, {.heads = 3}), std::invalid_argument);
  EXPECT_THROW(make_model("transformer", kWords, 1, {.layers = 0}), std::invalid_argument);
}

TEST(Models, ATransformersFirstGuessIsUniform) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits =
      make_model("transformer", kWords, 1)->forward(torch::randint(50, {2, 32}, torch::kInt64));
  // Weights begin small: no word is foretold with more than a few times the probability of another.
  EXPECT_LT(logits.softmax(1).max().item<double>(), 0.1);
}

TEST(Models, DeepFmIsTheSumOfItsParts) {
  const auto model = make_model("deepfm", kCategories, 1);
  const torch::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  parameters["first_order.weight"].uniform_(-1, 1);
  parameters["bias"].fill_(0.25);
  parameters["output.weight"].zero_();  // without the perceptron, only its last bias is left
  const torch::Tensor categories = torch::tensor({{3, 14, 15, 9, 26}, {5, 3, 58, 9, 7}}, torch::kInt64);
  const torch::Tensor logits = model->forward(categories);
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 2}));
  for (std::int64_t i = 0; i < 2; ++i) {
    double score = 0.25 + parameters["output.bias"].item<double>();
    for (std::int64_t a = 0; a < 5; ++a) {
      const auto row = categories[i][a].item<std::int64_t>();
      score += parameters["first_order.weight"][row].item<double>();
      for (std::int64_t b = a + 1; b < 5; ++b) {
        const auto partner = categories[i][b].item<std::int64_t>();
        score += parameters["factors.weight"][row].dot(parameters["factors.weight"][partner]).item<double>();
      }
    }
    EXPECT_EQ(logits[i][0].item<double>(), 0);
    EXPECT_NEAR(logits[i][1].item<double>(), score, 1e-5);
  }
}

TEST(Models, OnlyTablesAreRowSparse) {
  EXPECT_EQ(row_sparse_parameters(*make_model("cnn", kGrey, 1)), std::set<std::string>{});
  EXPECT_EQ(row_sparse_parameters(*make_model("lstm", kWords, 1)), std::set<std::string>{"embedding.weight"});
  EXPECT_EQ(row_sparse_parameters(*make_model("deepfm", kCategories, 1)),
            (std::set<std::string>{"first_order.weight", "factors.weight"}));
}

TEST(Models, RefuseDataOfAnotherKind) {
  try {
    make_model("lstm", kGrey, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "model 'lstm' learns from words, these data are images: give --data text or --data text:FILE");
  }
}

TEST(Models, StartFromTheirSeedEvenWhenBuiltAtTheSameTime) {
  const std::uint64_t wanted = hash_model(*make_model("resnet20", kColour, 7));
  EXPECT_NE(wanted, hash_model(*make_model("resnet20", kColour, 8)));
  std::vector<std::uint64_t> hashes(4);
  std::vector<std::thread> threads;
  for (auto& hash : hashes) {
    threads.emplace_back([&hash] { hash = hash_model(*make_model("resnet20", kColour, 7)); });
  }
  for (auto& thread : threads) thread.join();
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, wanted);
}

TEST(Models, UnknownNamesListTheKnown) {
  try {
    make_model("vgg", {}, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "unknown model 'vgg'; known: cnn, resnet20, resnet9, alexnet, lstm, transformer, deepfm");
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
      EXPECT_EQ(
          std::string(error.what())
              .rfind(
                  "dense after epoch 1: no set of parameters is that of most ranks: ranks 0 and 2, ranks 1",
                  0),
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

/// Of what is no gradient. Rank 1 receives one message with a bit that changed on the way, every one in turn.
TEST(Agreement, AChangedBitIsNoOnesResult) {
  const auto exchange = [](Communicator& communicator) {
    const auto model = make_model("resnet20", {}, static_cast<std::uint64_t>(communicator.rank()));
    broadcast_model(*model, communicator);
    model->named_buffers()["bn.running_mean"].fill_(communicator.rank());
    average_buffers(*model, communicator);
    return require_agreement(*model, communicator, "test");
  };
  std::uint64_t expected = 0;
  std::size_t messages = 0;
  run_in_process(2, [&](Communicator& communicator) {
    TappedCommunicator tapped(communicator, [&](const MessagePlace&, Span<std::byte>) {
      if (communicator.rank() == 1) ++messages;
    });
    const std::uint64_t hash = exchange(tapped);
    if (communicator.rank() == 0) expected = hash;
  });
  ASSERT_GT(messages, 10u);
  for (std::size_t changed = 0; changed < messages; changed += changed < 5 ? 1 : messages / 8 + 1) {
    run_in_process(2, [&](Communicator& communicator) {
      communicator.set_deadline(std::chrono::milliseconds(300));
      std::size_t seen = 0;
      TappedCommunicator tapped(communicator, [&](const MessagePlace&, Span<std::byte> bytes) {
        if (communicator.rank() == 1 && seen++ == changed && !bytes.empty()) bytes[0] ^= std::byte{4};
      });
      try {
        EXPECT_EQ(exchange(tapped), expected) << "message " << changed;
        EXPECT_EQ(communicator.rank(), 0) << "message " << changed;  // which may have ended before
      } catch (const std::runtime_error&) {
      }
    });
  }
}

}  // namespace
}  // namespace thinwire::train
