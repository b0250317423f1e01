#include "apps/train/worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "apps/test_folder.h"
#include "apps/train/data/test_dataset.h"
#include "apps/train/recorder.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

Options small_options() {
  Options options;
  options.workers = 3;
  options.epochs = 2;
  options.batch = 8;
  options.learning_rate = 0.1;
  options.bucket_megabytes = 0;
  return options;
}

/// Rank 0's result.
RunResult train(const Options& options, const Dataset& dataset, const std::string& spec,
                const std::string& checkpoint = "", bool resume = false) {
  RunResult result;
  run_in_process(options.workers, [&](Communicator& communicator) {
    const Job job{options, dataset, spec, checkpoint, resume};
    RunResult mine = train_rank(job, communicator, nullptr);
    if (communicator.rank() == 0) result = std::move(mine);
  });
  return result;
}

TEST(Worker, LearnsAndReports) {
  const ImageDataset dataset(banded_set(480, 100));
  Options options = small_options();
  options.epochs = 3;
  for (const std::string spec : {"dense", "marsit:full_every=10:eta_s=0.01"}) {
    const RunResult result = train(options, dataset, spec);
    EXPECT_TRUE(result.ranks_agree);
    EXPECT_EQ(result.failure, "");
    ASSERT_EQ(result.epochs.size(), 3u);
    EXPECT_GT(result.epochs.back().test_accuracy, 0.9) << spec;
    EXPECT_LT(result.epochs.back().loss, result.epochs.front().loss) << spec;
    EXPECT_EQ(result.parameters, 794310u);
    ASSERT_EQ(result.costs.size(), 3u);
    for (const Costs& costs : result.costs) {
      EXPECT_EQ(costs.steps, 60u);
      EXPECT_GE(costs.bytes_sent, costs.formula_bytes) << spec;
      EXPECT_LE(costs.bytes_sent, costs.formula_bytes + costs.formula_bytes / 20) << spec;
    }
    std::uint64_t most = 0;
    for (const Costs& costs : result.costs) most = std::max(most, costs.bytes_sent);
    EXPECT_EQ(most, result.epochs.back().wire_bytes_so_far) << spec;
    EXPECT_GT(result.seconds_median, 0);
  }
}

TEST(Worker, MoreRanksWithDenseGradientsDoWhatOneDoesWithAllImages) {
  const ImageDataset dataset(banded_set(240, 100));
  Options options = small_options();
  options.epochs = 1;
  options.workers = 4;
  options.batch = 6;
  const RunResult many = train(options, dataset, "dense");
  options.workers = 1;
  options.batch = 24;
  const RunResult one = train(options, dataset, "dense");
  // The same sums in another order: float32 rounding, amplified by ten steps of training.
  EXPECT_NEAR(many.epochs[0].loss, one.epochs[0].loss, 1e-3);
}

TEST(Worker, RanksOfAHostTrainAsOneWorker) {
  const ImageDataset dataset(banded_set(240, 100));
  Options options = small_options();
  options.epochs = 1;
  options.workers = 4;
  options.batch = 6;
  for (const std::string spec : {"dense", "casq:bits=4", "power_sgd:rank=2"}) {
    options.ranks_per_host = 1;
    const RunResult apart = train(options, dataset, spec);
    options.ranks_per_host = 2;
    const RunResult hosts = train(options, dataset, spec);
    EXPECT_TRUE(hosts.ranks_agree);
    EXPECT_NEAR(hosts.epochs[0].loss, apart.epochs[0].loss, spec == "dense" ? 1e-3 : 0.1);
    // Of two hosts' ranks each sends half of what it sent to three others, or less.
    const auto sent = [](const RunResult& result) {
      std::uint64_t bytes = 0;
      for (const Costs& costs : result.costs) bytes += costs.bytes_sent;
      return bytes;
    };
    EXPECT_LT(sent(hosts), 0.7 * static_cast<double>(sent(apart))) << spec;
  }
}

TEST(Worker, IsAFunctionOfTheSeed) {
  const ImageDataset dataset(banded_set(96, 20));
  Options options = small_options();
  const std::uint64_t hash = train(options, dataset, "marsit").model_hash;
  EXPECT_EQ(train(options, dataset, "marsit").model_hash, hash);
  options.seed = 2;
  EXPECT_NE(train(options, dataset, "marsit").model_hash, hash);
}

TEST(Worker, ResumesBitForBit) {
  const ImageDataset dataset(banded_set(240, 50, /*augment=*/true));
  for (const std::string model : {"cnn", "resnet20"}) {
    for (const std::string spec : {"dense", "marsit:full_every=7"}) {
      Options options = small_options();
      options.model = model;
      options.momentum = 0.5;
      if (model == "resnet20") options.batch = 20;
      const RunResult straight = train(options, dataset, spec);
      const apps::TestFolder folder;
      options.stop_after = 1;
      const RunResult first = train(options, dataset, spec, folder.path());
      EXPECT_EQ(first.epochs.size(), 1u);
      EXPECT_NE(first.model_hash, straight.model_hash);
      const RunResult second = train(options, dataset, spec, folder.path(), /*resume=*/true);
      EXPECT_EQ(second.model_hash, straight.model_hash) << model << " " << spec;
      ASSERT_EQ(second.epochs.size(), 2u);
      EXPECT_EQ(second.epochs[0].loss, straight.epochs[0].loss);
      EXPECT_EQ(second.epochs[1].test_accuracy, straight.epochs[1].test_accuracy);
      EXPECT_EQ(second.costs[2].bytes_sent, straight.costs[2].bytes_sent);
      EXPECT_EQ(second.costs[2].steps, straight.costs[2].steps);
      // Nothing is left to do: the result is that of the checkpoint.
      EXPECT_EQ(train(options, dataset, spec, folder.path(), true).model_hash, straight.model_hash);
    }
  }
}

TEST(Worker, ResumesWithAVarianceThatStoodStill) {
  const ImageDataset dataset(banded_set(240, 50));
  Options options = small_options();
  options.optimizer = OptimizerKind::adamw;
  options.learning_rate = 1e-3;
  const std::string spec = "zero_one_adam:kappa=2";  // moves in 0, 1, 2, 4, 6, 10, 14 of 20 steps
  const RunResult straight = train(options, dataset, spec);
  const apps::TestFolder folder;
  options.stop_after = 1;
  train(options, dataset, spec, folder.path());
  EXPECT_EQ(train(options, dataset, spec, folder.path(), /*resume=*/true).model_hash, straight.model_hash);
}

Options table_options(const std::string& model) {
  Options options = small_options();
  options.model = model;
  options.workers = 2;
  options.learning_rate = model == "lstm" ? 8 : 0.5;
  options.weight_decay = 0;
  options.bucket_megabytes = 25;
  return options;
}

TEST(Worker, LearnsWordsAndCategories) {
  const TextDataset text(chain_text(8000), 100);
  const AdultDataset adult({adult_records(600, 1), adult_records(200, 2)});
  for (const std::string model : {"lstm", "deepfm"}) {
    Options options = table_options(model);
    options.epochs = 4;
    const Dataset& dataset = model == "lstm" ? static_cast<const Dataset&>(text) : adult;
    const RunResult dense = train(options, dataset, "dense");
    EXPECT_EQ(dense.failure, "");
    EXPECT_GT(dense.epochs.back().test_accuracy, 0.9) << model;
    if (model == "lstm") {
      EXPECT_LT(dense.epochs.back().perplexity, 2);
      EXPECT_LT(dense.epochs.back().perplexity, dense.epochs.front().perplexity);
    } else {
      EXPECT_EQ(dense.epochs.back().perplexity, -1);
    }
    const EpochResult& last = dense.epochs.back();
    EXPECT_GT(last.wire_bytes_rows, 0);
    EXPECT_DOUBLE_EQ(last.wire_bytes_rows + last.wire_bytes_dense, last.wire_bytes);
    EXPECT_GT(last.seconds_step_median, 0);
    for (const Costs& costs : dense.costs) {
      EXPECT_GT(costs.row_elements_in, 0);
      EXPECT_GE(costs.row_elements_out, costs.row_elements_in);
      EXPECT_GE(costs.row_elements, costs.row_elements_out);
    }
    // Both halves dense, so that it is the same training by another way.
    EXPECT_EQ(train(options, dataset, "rows=dense,dense=dense:feedback=off").model_hash, dense.model_hash);
    EXPECT_EQ(train(options, dataset, "rows=dense,dense=marsit").failure, "");
  }
}

TEST(Worker, ResumesModelsWithTablesBitForBit) {
  const TextDataset text(chain_text(2000), 100);
  const AdultDataset adult({adult_records(96, 1), adult_records(20, 2)});
  for (const std::string model : {"lstm", "deepfm"}) {
    const Dataset& dataset = model == "lstm" ? static_cast<const Dataset&>(text) : adult;
    for (const std::string spec : {"dense", "rows=dense,dense=marsit:full_every=7", "marsit:full_every=5"}) {
      Options options = table_options(model);
      options.momentum = 0.5;
      const RunResult straight = train(options, dataset, spec);
      const apps::TestFolder folder;
      options.stop_after = 1;
      EXPECT_NE(train(options, dataset, spec, folder.path()).model_hash, straight.model_hash);
      const RunResult second = train(options, dataset, spec, folder.path(), /*resume=*/true);
      EXPECT_EQ(second.model_hash, straight.model_hash) << model << " " << spec;
      ASSERT_EQ(second.epochs.size(), 2u);
      EXPECT_EQ(second.epochs[1].perplexity, straight.epochs[1].perplexity);
      EXPECT_EQ(second.epochs[0].wire_bytes_rows, straight.epochs[0].wire_bytes_rows);
      EXPECT_EQ(second.costs[1].bytes_sent_rows, straight.costs[1].bytes_sent_rows);
      EXPECT_EQ(second.costs[1].row_elements_out, straight.costs[1].row_elements_out);
    }
  }
}

Options transformer_options() {
  Options options = table_options("transformer");
  options.optimizer = OptimizerKind::adamw;
  options.learning_rate = 3e-3;
  options.clip = 1;
  options.context = 16;
  options.transformer = {.layers = 2, .width = 32, .heads = 4};
  return options;
}

TEST(Worker, LearnsWordsWithATransformerAndAdamW) {
  const TextDataset text(chain_text(8000), 100, 16);
  Options options = transformer_options();
  options.epochs = 3;
  for (const std::string spec : {"dense", "casq:bits=4", "power_sgd:rank=4"}) {
    const RunResult result = train(options, text, spec);
    EXPECT_EQ(result.failure, "");
    EXPECT_TRUE(result.ranks_agree);
    EXPECT_GT(result.epochs.back().test_accuracy, 0.9) << spec;
    EXPECT_NEAR(std::exp(result.epochs.back().test_loss), result.epochs.back().perplexity, 1e-6) << spec;
  }
}

TEST(Worker, ResumesAdamWWithClippingBitForBit) {
  const TextDataset text(chain_text(2000), 100, 16);
  for (const std::string spec :
       {"dense", "casq", "top_k:ratio=0.05+zen", "warm_up:steps=20:with=blocks/bits=4+casq:bits=4",
        "whole+power_sgd:rank=2:bits=8", "decay:factor=0.9+top_k:ratio=0.05+zen", "blocks:bits=4:block=128",
        "clip+momentum+casq:bits=4", "clip:norm=0.5+one_bit_adam:freeze=20"}) {
    Options options = transformer_options();
    if (spec.starts_with("clip")) options.clip = 0;
    options.epoch_steps = 9;  // in the middle of a pass over the data, which has 29
    options.epochs = 5;
    const RunResult straight = train(options, text, spec);
    const apps::TestFolder folder;
    options.stop_after = 2;
    EXPECT_NE(train(options, text, spec, folder.path()).model_hash, straight.model_hash);
    options.stop_after = 0;
    const RunResult second = train(options, text, spec, folder.path(), /*resume=*/true);
    EXPECT_EQ(second.model_hash, straight.model_hash) << spec;
    ASSERT_EQ(second.epochs.size(), 5u);
    EXPECT_EQ(second.epochs[0].test_loss, straight.epochs[0].test_loss);
    EXPECT_EQ(second.epochs[4].test_loss, straight.epochs[4].test_loss);
    EXPECT_EQ(second.costs[0].steps, 45u);
  }
}

TEST(Worker, TheStageClipsEachWorkersOwnGradient) {
  const ImageDataset dataset(banded_set(96, 20));
  Options options = small_options();
  options.epochs = 1;
  options.bucket_megabytes = 25;  // one bucket, whose norm is that of all
  const auto losses = [&](int workers, const std::string& spec, double clip) {
    options.workers = workers;
    options.clip = clip;
    return train(options, dataset, spec).epochs.back().test_loss;
  };
  EXPECT_NEAR(losses(1, "clip:norm=0.01+dense", 0), losses(1, "dense", 0.01), 1e-6)
      << "one worker's own gradient is the mean";
  EXPECT_GT(std::fabs(losses(2, "clip:norm=0.01+dense", 0) - losses(2, "dense", 0.01)), 1e-6);
}

TEST(Worker, EpochsOfAnyLengthAreTheSameTraining) {
  const ImageDataset dataset(banded_set(240, 50, /*augment=*/true));
  Options options = small_options();
  options.schedule = Schedule::constant;
  const RunResult by_pass = train(options, dataset, "marsit:full_every=7");
  options.epoch_steps = 5;
  options.epochs = 4;
  EXPECT_EQ(train(options, dataset, "marsit:full_every=7").model_hash, by_pass.model_hash);
}

TEST(Worker, RecordsTheFirstSteps) {
  const TextDataset text(chain_text(4000), 100);
  const apps::TestFolder folder;
  Options options = table_options("lstm");
  options.epochs = 1;
  options.record = 3;
  options.record_to = folder.path();
  train(options, text, "dense");
  for (int rank = 0; rank < 2; ++rank) {
    const apps::GradientFile file = apps::read_gradient_file(folder.file(Recorder::file_name(rank)));
    EXPECT_EQ(file.rank, rank);
    EXPECT_EQ(file.world_size, 2);
    ASSERT_EQ(file.steps.size(), 3u);
    EXPECT_EQ(file.steps[2].step, 2u);
    EXPECT_EQ(file.steps[0].tensors.back().indices.size(), 8u * 32);
  }
}

TEST(Worker, RefusesACheckpointOfSomethingElse) {
  const ImageDataset dataset(banded_set(96, 20));
  const apps::TestFolder folder;
  Options options = small_options();
  options.stop_after = 1;
  train(options, dataset, "dense", folder.path());
  const auto complaint = [&](const std::string& spec) -> std::string {
    try {
      train(options, dataset, spec, folder.path(), true);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(complaint("marsit").find("was made with spec=dense"), std::string::npos) << complaint("marsit");
  options.workers = 2;
  EXPECT_NE(complaint("dense").find("workers=3, not workers=2"), std::string::npos) << complaint("dense");
  options = small_options();
  options.model = "resnet20";
  EXPECT_NE(complaint("dense").find("model=cnn, not model=resnet20"), std::string::npos)
      << complaint("dense");
}

TEST(Worker, SaysThatItDiverged) {
  const ImageDataset dataset(banded_set(720, 20));
  Options options = small_options();
  options.learning_rate = 1e30;
  const RunResult result = train(options, dataset, "dense");
  EXPECT_EQ(result.failure.rfind("diverged", 0), 0u) << result.failure;
  EXPECT_GE(result.skipped_steps, static_cast<std::uint64_t>(kHopelessSteps));
  EXPECT_TRUE(result.ranks_agree);
}

/// The last steps ruin the weights, and no step's loss shows it.
TEST(Worker, SaysThatTheTestDataHaveNoLoss) {
  Options options = transformer_options();
  options.epochs = 1;
  options.epoch_steps = 4;
  options.learning_rate = 1e30;
  const RunResult result = train(options, TextDataset(chain_text(8000), 100), "dense");
  EXPECT_NE(result.failure.find("diverged: after epoch 1 the loss of the test data is not finite"),
            std::string::npos)
      << result.failure;
}

/// One image of the first epoch makes one rank's gradient NaN.
class WithABadImage final : public ImageDataset {
 public:
  using ImageDataset::ImageDataset;

  Batch training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                       std::uint64_t epoch) const override {
    Batch batch = ImageDataset::training_batch(indices, seed, epoch);
    const auto* const bad = std::find(indices.begin(), indices.end(), 7u);
    if (epoch == 0 && bad != indices.end()) batch.inputs[bad - indices.begin()].fill_(NAN);
    return batch;
  }
};

TEST(Worker, AGradientThatIsNotFiniteCostsOneStepOnAllRanks) {
  const WithABadImage dataset(banded_set(240, 100));
  for (const std::string spec :
       {"dense", "casq", "top_k:ratio=0.05+zen", "power_sgd:rank=4", "marsit:full_every=10:eta_s=0.01"}) {
    const RunResult result = train(small_options(), dataset, spec);
    EXPECT_EQ(result.failure, "") << spec;
    EXPECT_EQ(result.skipped_steps, 1u) << spec;
    EXPECT_TRUE(result.ranks_agree) << spec;
    EXPECT_TRUE(std::isfinite(result.residual_norm)) << spec;
    ASSERT_EQ(result.epochs.size(), 2u) << spec;
    EXPECT_LT(result.epochs[1].loss, result.epochs[0].loss) << spec;
  }
}

TEST(Worker, RanksThatWereAskedForDifferentThingsDoNotStart) {
  const ImageDataset dataset(banded_set(96, 20));
  EXPECT_THROW(run_in_process(3,
                              [&](Communicator& communicator) {
                                Options options = small_options();
                                if (communicator.rank() == 1) options.learning_rate = 0.5;
                                train_rank({options, dataset, "dense", "", false}, communicator, nullptr);
                              }),
               std::runtime_error);
}

}  // namespace
}  // namespace thinwire::train
