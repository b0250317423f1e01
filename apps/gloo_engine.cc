#include "apps/gloo_engine.h"

#include <memory>

#include "apps/engine.h"
#include "torch/gloo_environment.h"

namespace thinwire::apps {

void use_gloo_of_torch() {
#if THINWIRE_HAVE_GLOO
  use_gloo({.world_size = [] { return GlooEnvironment::read().world_size; },
            .world = [](std::chrono::duration<double> deadline) -> Communicator& {
              static const std::unique_ptr<Communicator> world = open_gloo_from_environment(deadline);
              return *world;
            }});
#endif
}

}  // namespace thinwire::apps
