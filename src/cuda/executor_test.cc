#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "thinwire/cuda.h"
#include "thinwire/workspace.h"

namespace thinwire::executor_test {
namespace {

TEST(CudaExecutor, RefusesDevicesThatAreNotThere) {
  EXPECT_ANY_THROW(make_cuda_executor(-1));
  EXPECT_ANY_THROW(make_cuda_executor(cuda_devices()));
  try {
    make_cuda_executor(cuda_devices() + 7);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    EXPECT_TRUE(what.find("CUDA device") != std::string::npos ||
                what.find("THINWIRE_CUDA=ON") != std::string::npos)
        << what;
  }
}

/// For scripts/check_cuda, which is there to find one.
TEST(CudaDevice, IsThereWhereItIsWanted) {
  const char* wanted = std::getenv("THINWIRE_TEST_EXECUTORS");
  if (wanted != nullptr && std::string(wanted) == "cuda") {
    EXPECT_GT(cuda_devices(), 0) << "no CUDA device";
  }
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
    executor_ = make_cuda_executor(0, 2);
  }
  std::unique_ptr<Executor> executor_;
};

TEST_F(OnDevice, CopiesThereAndBack) {
  std::vector<int> values(100'003);
  std::iota(values.begin(), values.end(), 0);
  void* memory = executor_->allocator().allocate(values.size() * sizeof(int));
  const Span<int> there(static_cast<int*>(memory), values.size(), Memory::cuda);
  copy(*executor_, Span<const int>(values), there);
  std::vector<int> back(values.size());
  copy(*executor_, Span<const int>(there), Span<int>(back));
  EXPECT_EQ(back, values);
  executor_->allocator().release(memory);
}

TEST_F(OnDevice, WorkspaceIsMemoryOfBoth) {
  Workspace workspace(executor_->shared_allocator());
  const Span<float> values = workspace.take<float>(1000);
  ASSERT_EQ(values.memory(), Memory::host);
  std::fill(values.begin(), values.end(), 2.0f);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % 64, 0u);
  workspace.reset();
  EXPECT_EQ(workspace.allocations(), 1u);
}

TEST_F(OnDevice, HostWorkRunsOnTheHost) {
  std::vector<int> values(1000, 1);
  executor_->parallel_for(values.size(), 10, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++values[i];
  });
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 2000);
  EXPECT_EQ(executor_->concurrency(), 2);
  EXPECT_EQ(executor_->memory(), Memory::cuda);
}

TEST(CpuExecutor, RefusesMemoryOfADevice) {
  const auto executor = make_cpu_executor(1);
  int value = 0;
  const Span<int> there(&value, 1, Memory::cuda);
  std::vector<int> here(1);
  EXPECT_THROW(copy(*executor, Span<const int>(there), Span<int>(here)), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::executor_test
