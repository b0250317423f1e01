#include <thinwire/in_process.h>
#include <thinwire/session.h>

int main() {
  thinwire::run_in_process(4, [](thinwire::Communicator& communicator) {
    thinwire::Session session("marsit:full_every=10", communicator);
    session.add_bucket({{"weights", 1000}});
    std::vector<float> gradient(1000, static_cast<float>(communicator.rank()));
    session.synchronize(0, gradient);
    if (gradient[0] != 1.5f)
      throw std::runtime_error("the mean of 0, 1, 2, 3 is not " + std::to_string(gradient[0]));
  });
}
