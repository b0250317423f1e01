#include <thinwire/mpi.h>
#include <thinwire/session.h>

#include <stdexcept>
#include <vector>

int main() {
  thinwire::MpiWorld world;
  thinwire::Communicator& communicator = world.communicator();
  thinwire::Session session("marsit:full_every=10", communicator);
  session.add_bucket({{"weights", 1000}});
  std::vector<float> gradient(1000, static_cast<float>(communicator.rank()));
  session.synchronize(0, gradient);
  const float mean = static_cast<float>(communicator.size() - 1) / 2;
  if (gradient[0] != mean) throw std::runtime_error("the mean of the ranks' numbers is not what came out");
}
