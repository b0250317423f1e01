#include "apps/train/checkpoint.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "apps/test_folder.h"
#include "apps/train/model_state.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

void write(const std::string& folder, std::uint64_t epoch, int workers) {
  run_in_process(workers, [&](Communicator& communicator) {
    StateWriter shared;
    if (communicator.rank() == 0) shared.put("epoch", epoch);
    StateWriter mine;
    mine.put("rank", static_cast<std::uint64_t>(communicator.rank()));
    write_checkpoint(folder, epoch, shared, mine, communicator);
  });
}

TEST(Checkpoint, KeepsTheNewestWholeOne) {
  const apps::TestFolder folder;
  EXPECT_EQ(latest_checkpoint(folder.path()), 0u);
  EXPECT_EQ(latest_checkpoint(folder.file("absent")), 0u);
  write(folder.path(), 1, 3);
  write(folder.path(), 2, 3);
  std::filesystem::create_directories(folder.file("epoch-3.partial"));  // what an interruption leaves
  std::filesystem::create_directories(folder.file("epoch-x"));
  EXPECT_EQ(latest_checkpoint(folder.path()), 2u);
  EXPECT_FALSE(std::filesystem::exists(folder.file("epoch-1")));
  EXPECT_EQ(read_shared_state(folder.path(), 2).get_integer("epoch"), 2u);
  EXPECT_EQ(read_rank_state(folder.path(), 2, 2).get_integer("rank"), 2u);
  write(folder.path(), 3, 3);
  EXPECT_EQ(latest_checkpoint(folder.path()), 3u);
}

TEST(Checkpoint, SaysWhichFileIsMissingOrDamaged) {
  const apps::TestFolder folder;
  write(folder.path(), 1, 2);
  EXPECT_THROW(read_rank_state(folder.path(), 1, 2), std::runtime_error);
  folder.write("epoch-1/rank-1.state", "TWSTATE1 and then something else");
  try {
    read_rank_state(folder.path(), 1, 1);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("rank-1.state"), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, AllRanksHearOfAFailure) {
  const apps::TestFolder folder;
  folder.write("occupied", "");
  EXPECT_THROW(write(folder.file("occupied"), 1, 3), std::runtime_error);
}

TEST(Checkpoint, NamesTheOptionThatDiffers) {
  Options options;
  const std::string saved = trajectory(options, "dense", 5);
  require_same_trajectory(saved, saved, "DIR");
  options.workers = 9;
  try {
    require_same_trajectory(saved, trajectory(options, "dense", 5), "DIR");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("workers=4, not workers=9"), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, HistoryAndCostsComeBack) {
  StateWriter writer;
  put_history(writer, {{.epoch = 1,
                        .steps = 4,
                        .loss = 0.25,
                        .test_accuracy = 0.5,
                        .seconds = 3,
                        .wire_bytes = 1.5,
                        .wire_bytes_so_far = 6}});
  put_costs(writer, {.steps = 4, .bytes_sent = 6, .seconds_compress = 0.1});
  std::stringstream stream;
  writer.write(stream);
  const StateReader reader(stream);
  const auto history = get_history(reader);
  ASSERT_EQ(history.size(), 1u);
  EXPECT_EQ(history[0].loss, 0.25);
  EXPECT_EQ(history[0].wire_bytes_so_far, 6u);
  EXPECT_EQ(get_costs(reader).bytes_sent, 6u);
  EXPECT_EQ(get_costs(reader).seconds_compress, 0.1);
}

TEST(ModelState, RestoresEveryBitAndTheMomentum) {
  const auto make = [](std::uint64_t seed) {
    const auto model = make_model("resnet20", {}, seed);
    auto optimizer = std::make_unique<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
    return std::pair(model, std::move(optimizer));
  };
  const auto train = [](Model& model, torch::optim::SGD& optimizer, float value) {
    optimizer.zero_grad();
    model.forward(torch::full({2, 1, 28, 28}, value)).logsumexp(1).sum().backward();
    optimizer.step();
  };
  const auto bits = [](const Model& model) {
    std::vector<torch::Tensor> flat;
    for (const auto& tensor : model.parameters()) flat.push_back(tensor.detach().flatten());
    for (const auto& tensor : model.buffers()) flat.push_back(tensor.to(torch::kFloat32).flatten());
    return torch::cat(flat);
  };
  const auto [model, optimizer] = make(1);
  train(*model, *optimizer, 0.5f);
  StateWriter writer;
  put_model(writer, *model, *optimizer);
  std::stringstream stream;
  writer.write(stream);
  const auto [copy, copy_optimizer] = make(2);
  get_model(StateReader(stream), *copy, *copy_optimizer);
  EXPECT_TRUE(torch::equal(bits(*model), bits(*copy)));
  train(*model, *optimizer, 0.25f);
  train(*copy, *copy_optimizer, 0.25f);
  EXPECT_TRUE(torch::equal(bits(*model), bits(*copy)));
}

}  // namespace
}  // namespace thinwire::train
