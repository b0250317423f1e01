#include "planner/socket_cost.h"

#include <gtest/gtest.h>

namespace thinwire::socket_cost_test {
namespace {

/// A byte: between 100 GB/s, which no copy reaches twice, and 1 MB/s. A message: more than the system calls
/// that send and receive it, each of which takes 50 ns at least, and less than 10 ms.
TEST(SocketCost, IsWhatAMachineCanHave) {
  const SocketCost cost = measure_socket_cost();
  EXPECT_GT(cost.seconds_per_byte, 1e-11);
  EXPECT_LT(cost.seconds_per_byte, 1e-6);
  EXPECT_GT(cost.seconds_per_message, 1e-7);
  EXPECT_LT(cost.seconds_per_message, 1e-2);
}

}  // namespace
}  // namespace thinwire::socket_cost_test
