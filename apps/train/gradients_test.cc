// A model with embeddings through one session, against plain torch with dense gradients.

#include "apps/train/gradients.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "apps/train/data/test_dataset.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

torch::Tensor loss_of(Model& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(model.forward(batch.inputs), batch.labels);
}

/// Each rank's examples of a step.
std::vector<std::uint32_t> indices_of(std::uint32_t step, std::uint32_t rank, std::uint32_t ranks) {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < 4; ++i) indices.push_back((step * ranks + rank) * 4 + i);
  return indices;
}

void train_like_plain_torch(const std::string& name, const Dataset& dataset, const std::string& spec,
                            double clip = 1e9) {
  constexpr int kRanks = 2;
  constexpr std::uint32_t kSteps = 3;
  constexpr double kRate = 0.5;
  const auto reference = make_model(name, dataset.shape(), 1);
  for (const auto& module : reference->modules()) {
    if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) embedding->options.sparse(false);
  }
  torch::optim::SGD optimizer(reference->parameters(), torch::optim::SGDOptions(kRate));
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const auto indices = indices_of(step, rank, kRanks);
      (loss_of(*reference, dataset.training_batch(indices, 1, 0)) / kRanks).backward();
    }
    torch::nn::utils::clip_grad_norm_(reference->parameters(), clip);
    optimizer.step();
  }
  run_in_process(kRanks, [&](Communicator& communicator) {
    const auto model = make_model(name, dataset.shape(), 1);
    Session session(spec, communicator);
    Gradients gradients(*model, session, 1 << 12);
    torch::optim::SGD dense(gradients.dense_parameters(), torch::optim::SGDOptions(kRate));
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      gradients.clear();
      const auto indices = indices_of(step, static_cast<std::uint32_t>(communicator.rank()), kRanks);
      loss_of(*model, dataset.training_batch(indices, 1, 0)).backward();
      gradients.synchronize();
      session.next_step();
      const double factor = gradients.clip(clip);
      EXPECT_EQ(factor < 1, clip < 1);
      dense.step();
      gradients.apply_rows(factor * kRate);
    }
    const auto wanted = reference->named_parameters();
    for (const auto& item : model->named_parameters()) {
      const double error = (item.value() - wanted[item.key()]).abs().max().item<double>();
      EXPECT_LT(error, 1e-5) << name << " " << spec << " " << item.key();
    }
  });
}

TEST(Gradients, AreThoseOfPlainTorch) {
  const TextDataset text(chain_text(2000), 100);
  const AdultDataset adult({adult_records(100, 1), adult_records(10, 2)});
  for (const std::string spec : {"dense", "rows=dense,dense=dense:feedback=off"}) {
    train_like_plain_torch("lstm", text, spec);
    train_like_plain_torch("deepfm", adult, spec);
    for (const std::string model : {"lstm", "transformer"}) train_like_plain_torch(model, text, spec, 0.01);
  }
}

TEST(Gradients, TouchOnlyRowsThatSomeRankListed) {
  const AdultDataset dataset({adult_records(100, 1), adult_records(10, 2)});
  run_in_process(3, [&](Communicator& communicator) {
    const auto model = make_model("deepfm", dataset.shape(), 1);
    const torch::Tensor before = model->named_parameters()["factors.weight"].detach().clone();
    Session session("rows=dense,dense=marsit", communicator);
    Gradients gradients(*model, session, 1 << 20);
    EXPECT_EQ(gradients.buckets(), 3u);
    EXPECT_FALSE(gradients.row_sparse(0));
    EXPECT_TRUE(gradients.row_sparse(1) && gradients.row_sparse(2));
    gradients.clear();
    // Rank 2 has no batch in this step.
    torch::Tensor listed = torch::zeros({dataset.shape().table_rows}, torch::kBool);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const auto indices = indices_of(0, rank, 2);
      const Batch batch = dataset.training_batch(indices, 1, 0);
      listed.index_fill_(0, batch.inputs.flatten(), true);
      if (static_cast<int>(rank) == communicator.rank()) loss_of(*model, batch).backward();
    }
    gradients.synchronize();
    gradients.apply_rows(1);
    const torch::Tensor after = model->named_parameters()["factors.weight"].detach();
    const torch::Tensor changed = after.ne(before).any(1);
    EXPECT_TRUE(torch::equal(changed, listed));
    EXPECT_EQ(gradients.report(1).density_in == 0, communicator.rank() == 2);
    EXPECT_GT(gradients.report(1).density_out, 0);
  });
}

TEST(Gradients, AreRecordedAsTorchHasThem) {
  const TextDataset dataset(chain_text(2000), 100);
  run_in_process(1, [&](Communicator& communicator) {
    const auto model = make_model("lstm", dataset.shape(), 1);
    Session session("dense", communicator);
    Gradients gradients(*model, session, 1 << 20);
    gradients.clear();
    const apps::RecordedStep nothing = gradients.record(0);
    EXPECT_TRUE(nothing.tensors.back().indices.empty());
    const auto indices = indices_of(0, 0, 1);
    const Batch batch = dataset.training_batch(indices, 1, 0);
    loss_of(*model, batch).backward();
    const apps::RecordedStep step = gradients.record(7);
    EXPECT_EQ(step.step, 7u);
    ASSERT_EQ(step.tensors.size(), model->parameters().size());
    EXPECT_EQ(step.tensors.front().name, "output.bias");
    EXPECT_EQ(step.tensors.front().values.size(), static_cast<std::size_t>(dataset.shape().classes));
    const apps::RecordedTensor& table = step.tensors.back();
    EXPECT_EQ(table.name, "embedding.weight");
    EXPECT_TRUE(table.row_sparse);
    EXPECT_EQ(table.width, 128u);
    ASSERT_EQ(table.indices.size(), 4u * 32);  // one per word, repeated ones too
    for (std::size_t i = 0; i < table.indices.size(); ++i) {
      EXPECT_EQ(table.indices[i], batch.inputs.flatten()[static_cast<std::int64_t>(i)].item<std::int64_t>());
    }
  });
}

}  // namespace
}  // namespace thinwire::train
