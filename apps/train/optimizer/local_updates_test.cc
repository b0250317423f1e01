// Local updates against plain torch: rounds computed by hand, what a lossy system holds back, a round that is
// undone, and whole trainings.

#include "apps/train/optimizer/local_updates.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "apps/test_folder.h"
#include "apps/train/agreement.h"
#include "apps/train/data/batches.h"
#include "apps/train/data/test_dataset.h"
#include "apps/train/evaluation.h"
#include "apps/train/gradients.h"
#include "apps/train/optimizer/optimizer.h"
#include "apps/train/run.h"
#include "apps/train/worker.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

Options local_options(OptimizerKind optimizer) {
  Options options;
  options.model = "transformer";
  options.transformer = {.layers = 1, .width = 16, .heads = 2};
  options.workers = 2;
  options.epochs = 2;
  options.batch = 4;
  options.epoch_steps = 9;  // the last round of an epoch has one step
  options.local_steps = 4;
  options.optimizer = optimizer;
  options.learning_rate = optimizer == OptimizerKind::adamw ? 3e-3 : 0.1;
  options.momentum = optimizer == OptimizerKind::adamw ? 0 : 0.9;
  // Comparing between synchronizations would end the training.
  options.check_replicas_every = 1;
  return options;
}

const TextDataset& words() {
  static const TextDataset dataset(chain_text(3000), 100, 16);
  return dataset;
}

RunResult train_on(const Dataset& dataset, const Options& options, const std::string& spec,
                   const std::string& checkpoint = "", bool resume = false) {
  RunResult result;
  run_in_process(options.workers, [&](Communicator& communicator) {
    RunResult mine = train_rank({options, dataset, spec, checkpoint, resume}, communicator, nullptr);
    if (communicator.rank() == 0) result = std::move(mine);
  });
  return result;
}

RunResult train(const Options& options, const std::string& spec, const std::string& checkpoint = "",
                bool resume = false) {
  return train_on(words(), options, spec, checkpoint, resume);
}

struct PlainRank {
  std::shared_ptr<Model> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void plain_step(PlainRank& rank, int number, const Options& options, std::uint64_t step) {
  const std::vector<std::uint32_t> order = epoch_order(words().training_examples(), options.seed, 0);
  const Batch batch = words().training_batch(rank_batch(order, step, number, options.workers, options.batch),
                                             options.seed, 0);
  rank.optimizer->zero_grad();
  torch::nn::functional::cross_entropy(rank.model->forward(batch.inputs), batch.labels).backward();
  if (options.clip > 0) torch::nn::utils::clip_grad_norm_(rank.model->parameters(), options.clip);
  const auto all = static_cast<std::uint64_t>(options.epochs) * options.epoch_steps;
  rank.optimizer->param_groups()[0].options().set_lr(learning_rate_at(options, step, all));
  rank.optimizer->step();
}

/// One round of all ranks: each takes its steps, then all get x - rate * mean(x - x_w).
void plain_round(std::vector<PlainRank>& ranks, const Options& options, std::uint64_t first,
                 std::uint64_t last) {
  std::vector<torch::Tensor> start;
  std::vector<torch::Tensor> moved;
  for (const auto& parameter : ranks[0].model->parameters()) {
    start.push_back(parameter.detach().clone());
    moved.push_back(torch::zeros_like(start.back()));
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::uint64_t step = first; step < last; ++step) {
      plain_step(ranks[rank], static_cast<int>(rank), options, step);
    }
    const auto parameters = ranks[rank].model->parameters();
    for (std::size_t i = 0; i < start.size(); ++i) moved[i] += start[i] - parameters[i].detach();
  }
  const torch::NoGradGuard no_grad;
  const double share = options.outer_rate / static_cast<double>(ranks.size());
  for (auto& rank : ranks) {
    auto parameters = rank.model->parameters();
    for (std::size_t i = 0; i < start.size(); ++i) parameters[i].copy_(start[i] - share * moved[i]);
  }
}

struct Plain {
  std::uint64_t hash = 0;
  double test_loss = 0;
};

/// The whole training by torch alone.
Plain plain_training(const Options& options) {
  at::set_num_threads(options.threads);
  std::vector<PlainRank> ranks;
  for (int rank = 0; rank < options.workers; ++rank) {
    const auto model = make_model(options.model, words().shape(), options.seed, options.transformer);
    ranks.push_back({model, make_optimizer(options, model->parameters())});
  }
  for (std::uint64_t epoch = 0; epoch < static_cast<std::uint64_t>(options.epochs); ++epoch) {
    const std::uint64_t end = (epoch + 1) * options.epoch_steps;
    for (std::uint64_t first = end - options.epoch_steps; first < end;) {
      const std::uint64_t last = std::min(end, first + static_cast<std::uint64_t>(options.local_steps));
      plain_round(ranks, options, first, last);
      first = last;
    }
  }
  Plain result{.hash = hash_model(*ranks[0].model)};
  run_in_process(1, [&](Communicator& communicator) {
    result.test_loss = evaluate(*ranks[0].model, words(), communicator).loss;
  });
  return result;
}

TEST(LocalSteps, AreTheMeanOfRoundsComputedByHand) {
  for (const OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adamw}) {
    for (const double outer_rate : {1.0, 0.5}) {
      Options options = local_options(optimizer);
      options.outer_rate = outer_rate;
      // Halves of two ranks' sums are exact in any order, so every bit is the same.
      EXPECT_EQ(train(options, "dense").model_hash, plain_training(options).hash) << name_of(optimizer);
      // Norms are summed in another order here than in torch.
      options.clip = 0.1;
      EXPECT_NEAR(train(options, "dense").epochs.back().test_loss, plain_training(options).test_loss, 1e-4);
    }
  }
}

TEST(LocalSteps, OneOfPlainSgdIsAStepOnTheMeanGradient) {
  const ImageDataset images(banded_set(96, 40));
  Options options = local_options(OptimizerKind::sgd);
  options.model = "cnn";
  options.momentum = 0;
  options.local_steps = 0;
  const RunResult gradients = train_on(images, options, "dense");
  options.local_steps = 1;
  const RunResult updates = train_on(images, options, "dense");
  // Differences of parameters are rounded to the parameters' last bit.
  EXPECT_NEAR(updates.epochs.back().test_loss, gradients.epochs.back().test_loss, 1e-3);
  EXPECT_EQ(updates.costs[0].bytes_sent, gradients.costs[0].bytes_sent);
  options.local_steps = 9;
  const RunResult rarer = train_on(images, options, "dense");
  EXPECT_EQ(rarer.costs[0].steps, 18u);
  EXPECT_EQ(9 * rarer.costs[0].bytes_sent, gradients.costs[0].bytes_sent);
  EXPECT_GT(std::abs(rarer.epochs.back().test_loss - gradients.epochs.back().test_loss), 1e-2);
}

TEST(LocalSteps, LearnThroughLossySystems) {
  Options options = local_options(OptimizerKind::adamw);
  options.learning_rate = 1e-2;
  options.transformer = {.layers = 2, .width = 32, .heads = 4};
  options.batch = 8;
  options.epochs = 1;
  options.epoch_steps = 160;
  options.check_replicas_every = 50;
  for (const std::string spec : {"dense", "marsit:full_every=4:eta_factor=2", "casq:bits=4"}) {
    const RunResult result = train(options, spec);
    EXPECT_EQ(result.failure, "");
    EXPECT_TRUE(result.ranks_agree);
    EXPECT_GT(result.epochs.back().test_accuracy, 0.5) << spec;  // chance: 0.06
  }
}

TEST(LocalSteps, ResumeBitForBitWithEachRanksOwnOptimizer) {
  for (const OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adamw}) {
    for (const std::string spec : {"dense", "marsit:full_every=2:eta_factor=2"}) {
      Options options = local_options(optimizer);
      options.clip = 1;
      const RunResult straight = train(options, spec);
      const apps::TestFolder folder;
      options.stop_after = 1;
      EXPECT_NE(train(options, spec, folder.path()).model_hash, straight.model_hash);
      const RunResult second = train(options, spec, folder.path(), /*resume=*/true);
      EXPECT_EQ(second.model_hash, straight.model_hash) << spec << " " << name_of(optimizer);
      EXPECT_EQ(second.costs[1].bytes_sent, straight.costs[1].bytes_sent);
    }
  }
}

TEST(LocalSteps, SayThatTheyDiverged) {
  Options options = local_options(OptimizerKind::sgd);
  options.learning_rate = 1e30;
  options.epochs = 1;
  options.epoch_steps = 100;
  const RunResult result = train(options, "dense");
  EXPECT_NE(result.failure.find("20 rounds of local steps in a row"), std::string::npos) << result.failure;
  EXPECT_EQ(result.skipped_steps, 80u);
  EXPECT_TRUE(result.ranks_agree);
}

/// Two parameters of one rank, stepped by hand-made gradients.
struct SmallRank {
  SmallRank(const std::string& spec, const Options& options, Communicator& communicator)
      : model(make_model("transformer", words().shape(), 1, {.layers = 1, .width = 8, .heads = 1})),
        session(spec, communicator),
        gradients(*model, session, 1 << 20),
        optimizer(make_optimizer(options, gradients.dense_parameters())),
        local(gradients.dense_parameters(), {statistic}, *optimizer) {}

  /// Random gradients that depend on rank and step; `bad` makes one of them NaN.
  void local_step(int step, bool bad = false) {
    gradients.clear();
    int number = 0;
    for (const auto& parameter : gradients.dense_parameters()) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(
          static_cast<std::uint64_t>(1000 * session.communicator().rank() + 100 * step + number++));
      parameter.grad().copy_(torch::randn(parameter.sizes(), generator));
    }
    if (bad) {
      gradients.dense_parameters()[1].grad().view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
    }
    optimizer->step();
    // What a normalization in forward would keep.
    statistic.add_(gradients.dense_parameters()[1].detach().sum());
  }
  bool round(int first_step, int steps, bool bad = false) {
    local.begin();
    for (int i = 0; i < steps; ++i) local_step(first_step + i, bad && i == 1);
    local.take_updates();
    gradients.synchronize();
    const bool counts = session.next_step();
    if (counts) {
      local.apply(1);
    } else {
      local.undo();
    }
    return counts;
  }

  std::shared_ptr<Model> model;
  Session session;
  Gradients gradients;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  torch::Tensor statistic = torch::zeros(3);
  LocalUpdates local;
};

TEST(LocalUpdates, LeaveNoTraceOfARoundThatWasNotFiniteOnOneRank) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
    const Options options = local_options(kind);
    for (const std::string spec : {"dense", "marsit:full_every=3"}) {
      run_in_process(2, [&](Communicator& communicator) {
        SmallRank disturbed(spec, options, communicator);
        SmallRank other(spec, options, communicator);
        // Before the optimizer has any state, and later.
        for (int round = 0; round < 4; ++round) {
          if (round % 2 == 0) {
            const bool bad = communicator.rank() == round / 2;
            const std::uint64_t before = hash_model(*disturbed.model);
            EXPECT_FALSE(disturbed.round(50, 3, bad));
            EXPECT_EQ(hash_model(*disturbed.model), before);
            EXPECT_TRUE(torch::equal(disturbed.statistic, other.statistic)) << disturbed.statistic;
            EXPECT_FALSE(other.session.next_step(false));  // for the same numbers of steps
          }
          EXPECT_TRUE(disturbed.round(3 * round, 3));
          EXPECT_TRUE(other.round(3 * round, 3));
          EXPECT_EQ(hash_model(*disturbed.model), hash_model(*other.model)) << spec << " round " << round;
        }
      });
    }
  }
}

/// What all rounds moved on the ranks has come to the common parameters or lies in the residuals.
TEST(LocalUpdates, AreDeliveredOrHeldBack) {
  const Options options = local_options(OptimizerKind::adamw);
  for (const std::string spec : {"marsit:full_every=0:eta_factor=1", "casq:bits=3", "top_k:ratio=0.05+zen"}) {
    torch::Tensor moved_on_ranks;
    torch::Tensor residuals;
    torch::Tensor moved;
    std::mutex mutex;
    run_in_process(2, [&](Communicator& communicator) {
      SmallRank rank(spec, options, communicator);
      torch::Tensor mine;
      torch::Tensor before;
      const auto flat = [&](bool of_gradients) {
        std::vector<torch::Tensor> parts;
        // In the order of the bucket.
        const auto& parameters = rank.gradients.dense_parameters();
        for (auto item = parameters.rbegin(); item != parameters.rend(); ++item) {
          parts.push_back((of_gradients ? item->grad() : item->detach()).flatten());
        }
        return torch::cat(parts).to(torch::kFloat64);
      };
      before = flat(false);
      mine = torch::zeros_like(before);
      for (int round = 0; round < 5; ++round) {
        rank.local.begin();
        for (int step = 0; step < 3; ++step) rank.local_step(3 * round + step);
        rank.local.take_updates();
        mine += flat(true);
        rank.gradients.synchronize();
        EXPECT_TRUE(rank.session.next_step());
        rank.local.apply(1);
      }
      const Span<const float> left = rank.session.residual(0);
      ASSERT_EQ(left.size(), static_cast<std::size_t>(before.numel()));
      const torch::Tensor residual =
          torch::from_blob(const_cast<float*>(left.data()), {before.numel()}).to(torch::kFloat64);
      const std::lock_guard<std::mutex> lock(mutex);
      moved_on_ranks = moved_on_ranks.defined() ? moved_on_ranks + mine : mine;
      residuals = residuals.defined() ? residuals + residual : residual;
      moved = before - flat(false);
    });
    EXPECT_GT(residuals.abs().max().item<double>(), 1e-4) << spec;
    EXPECT_LT((moved_on_ranks - 2 * moved - residuals).abs().max().item<double>(), 1e-5) << spec;
  }
}

TEST(LocalSteps, RefuseWhatDoesNotGoWithThem) {
  const auto complaint = [](auto change) -> std::string {
    Options options = local_options(OptimizerKind::adamw);
    options.data = "text";
    change(options);
    try {
      run(options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto expect = [&](const std::string& words, auto change) {
    EXPECT_NE(complaint(change).find(words), std::string::npos) << complaint(change);
  };
  expect("--local-steps must be at least 0, not -1", [](Options& options) { options.local_steps = -1; });
  expect("--outer-rate must be above 0, not 0", [](Options& options) { options.outer_rate = 0; });
  expect("give --local-steps, or scale --lr", [](Options& options) {
    options.local_steps = 0;
    options.outer_rate = 0.5;
  });
  expect("the tables of 'lstm' are rows, and local steps move whole", [](Options& options) {
    options.optimizer = OptimizerKind::sgd;
    options.model = "lstm";
  });
  expect("--sync zero_one_adam: it freezes Adam's variance",
         [](Options& options) { options.specs = {"zero_one_adam"}; });
  expect("--sync clip+qsgd: clip is for gradients", [](Options& options) { options.specs = {"clip+qsgd"}; });
  expect("--sync momentum+power_sgd: momentum is for gradients", [](Options& options) {
    options.specs = {"dense", "momentum+power_sgd"};
  });
}

}  // namespace
}  // namespace thinwire::train
