#include "apps/train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <functional>

#include "apps/test_folder.h"
#include "apps/train/agreement.h"
#include "apps/train/model_state.h"
#include "thinwire/in_process.h"
#include "thinwire/registry.h"

namespace thinwire::train {
namespace {

void write(const std::string& folder, std::uint64_t epoch, int workers) {
  run_in_process(workers, [&](Communicator& communicator) {
    StateWriter shared;
    if (communicator.rank() == 0) shared.put("epoch", epoch);
    StateWriter mine;
    mine.put("epoch", epoch);
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
  EXPECT_TRUE(std::filesystem::exists(folder.file("epoch-1")));  // the newest may turn out to be damaged
  EXPECT_EQ(read_shared_state(folder.path(), 2).get_integer("epoch"), 2u);
  EXPECT_EQ(read_rank_state(folder.path(), 2, 2).get_integer("rank"), 2u);
  write(folder.path(), 3, 3);
  EXPECT_EQ(checkpoints(folder.path()), (std::vector<std::uint64_t>{3, 2}));
  write(folder.path(), 3, 3);  // once more, in the place of the first
  EXPECT_EQ(checkpoints(folder.path()), (std::vector<std::uint64_t>{3, 2}));
  EXPECT_FALSE(std::filesystem::exists(folder.file("epoch-3.replaced")));
}

/// What the ranks go on from.
std::vector<std::pair<std::uint64_t, std::string>> resumed(const std::string& folder, int workers) {
  std::vector<std::pair<std::uint64_t, std::string>> all(static_cast<std::size_t>(workers));
  run_in_process(workers, [&](Communicator& communicator) {
    const Checkpoint found = read_newest_checkpoint(folder, communicator);
    EXPECT_EQ(found.shared.get_integer("epoch"), found.epoch);
    EXPECT_EQ(found.mine.get_integer("rank"), static_cast<std::uint64_t>(communicator.rank()));
    all[static_cast<std::size_t>(communicator.rank())] = {found.epoch, found.passed_over};
  });
  return all;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Checkpoint, GoesOnFromTheOneBeforeADamagedOne) {
  const apps::TestFolder folder;
  for (const std::uint64_t epoch : {1u, 2u, 3u}) write(folder.path(), epoch, 3);
  std::ofstream(folder.file("epoch-3/rank-1.state"), std::ios::app) << std::string(21, 'x');
  for (const auto& [epoch, passed_over] : resumed(folder.path(), 3)) {
    EXPECT_EQ(epoch, 2u);
    EXPECT_NE(passed_over.find("rank"), std::string::npos);
  }
  EXPECT_NE(resumed(folder.path(), 3)[1].second.find("other bytes follow its end"), std::string::npos);
  // Files of two ranks, and of two epochs, in each other's place.
  std::filesystem::copy_file(folder.file("epoch-2/rank-0.state"), folder.file("epoch-2/rank-2.state"),
                             std::filesystem::copy_options::overwrite_existing);
  const std::string both = error_of([&] { resumed(folder.path(), 3); });
  EXPECT_NE(both.find("no whole checkpoint"), std::string::npos) << both;
  EXPECT_NE(error_of([&] { read_rank_state(folder.path(), 2, 2); }).find("is of rank 0, not 2"),
            std::string::npos);
  std::filesystem::copy_file(folder.file("epoch-2/shared.state"), folder.file("epoch-3/shared.state"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(error_of([&] { read_shared_state(folder.path(), 3); }).find("is of epoch 2, not 3"),
            std::string::npos);
}

TEST(Checkpoint, AFullDiskLosesNothing) {
  const apps::TestFolder folder;
  write(folder.path(), 1, 2);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // then the write fails, as on a full disk
  const rlimit small{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = error_of([&] {
    run_in_process(2, [&](Communicator& communicator) {
      StateWriter mine;
      const std::vector<float> residual(communicator.rank() == 1 ? 1000 : 1);
      mine.put("residual", Span<const float>(residual));
      write_checkpoint(folder.path(), 2, {}, mine, communicator);
    });
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(text.find("no checkpoint of epoch 2"), std::string::npos) << text;
  EXPECT_NE(text.find("that of epoch 1 stands"), std::string::npos) << text;
  EXPECT_EQ(checkpoints(folder.path()), std::vector<std::uint64_t>{1});
  EXPECT_FALSE(std::filesystem::exists(folder.file("epoch-2.partial")));
  EXPECT_EQ(resumed(folder.path(), 2)[1], (std::pair<std::uint64_t, std::string>{1, ""}));
  write(folder.path(), 2, 2);
  EXPECT_EQ(latest_checkpoint(folder.path()), 2u);
}

TEST(Agreement, NamesTheRankWithAnotherParameter) {
  const std::string text = error_of([] {
    run_in_process(3, [](Communicator& communicator) {
      const auto model = make_model("cnn", {}, 1);
      require_same_parameters(*model, 5, communicator);
      if (communicator.rank() == 2) {
        static_cast<std::byte*>(model->parameters()[1].data_ptr())[9] ^= std::byte{1};
      }
      require_same_parameters(*model, 6, communicator);
    });
  });
  EXPECT_NE(
      text.find("replicas differ before step 6: rank 2 holds other parameters than the rest of 3 ranks"),
      std::string::npos)
      << text;
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
  const auto canonical = [](const char* spec) { return builtin_registry().canonical(spec); };
  try {
    require_same_trajectory(trajectory(options, canonical("casq:bits=4"), 5),
                            trajectory(options, canonical("marsit"), 5), "DIR");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("spec=casq:bits=4, not spec=marsit:"), std::string::npos)
        << error.what();
  }
}

TEST(Checkpoint, OfAVersionThatKnewFewerOptionsIsTheSame) {
  const Options options;
  const std::string now = builtin_registry().canonical("casq:bits=4");
  const std::string option = ":downlink=codes";  // its default
  const std::size_t at = now.find(option);
  ASSERT_NE(at, std::string::npos) << now;
  const std::string then = now.substr(0, at) + now.substr(at + option.size());
  EXPECT_NO_THROW(require_same_trajectory(trajectory(options, then, 5), trajectory(options, now, 5), "DIR"));
  EXPECT_THROW(
      require_same_trajectory(
          trajectory(options, then, 5),
          trajectory(options, builtin_registry().canonical("casq:bits=4:downlink=float32"), 5), "DIR"),
      std::runtime_error);
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
  put_model(writer, *model);
  put_optimizer(writer, *optimizer);
  std::stringstream stream;
  writer.write(stream);
  const auto [copy, copy_optimizer] = make(2);
  const StateReader reader(stream);
  get_model(reader, *copy);
  get_optimizer(reader, *copy_optimizer);
  EXPECT_TRUE(torch::equal(bits(*model), bits(*copy)));
  train(*model, *optimizer, 0.25f);
  train(*copy, *copy_optimizer, 0.25f);
  EXPECT_TRUE(torch::equal(bits(*model), bits(*copy)));
}

}  // namespace
}  // namespace thinwire::train
