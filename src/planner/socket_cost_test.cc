#include "planner/socket_cost.h"

#include <gtest/gtest.h>

namespace thinwire::socket_cost_test {
namespace {

/// Between 100 GB/s, which no copy reaches twice, and 1 MB/s.
TEST(SocketCost, IsWhatAMachineCanHave) {
  const double seconds = measure_socket_seconds_per_byte();
  EXPECT_GT(seconds, 1e-11);
  EXPECT_LT(seconds, 1e-6);
}

}  // namespace
}  // namespace thinwire::socket_cost_test
