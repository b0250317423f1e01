// campaign_gloo_rank(KEY=VALUE...): one rank of the campaign on a Session over Gloo, see session_rank.h. In a
// library, since a process that has loaded libtorch already forks into a rank in no time.

#include "apps/engine.h"
#include "apps/gloo_engine.h"
#include "tests/campaign/session_rank.h"

extern "C" int campaign_gloo_rank(int argc, char** argv) {
  thinwire::apps::use_gloo_of_torch();
  return thinwire::campaign::run_rank(argc, argv, [](const auto& plan, auto body) {
    thinwire::apps::EngineOptions options{.engine = "gloo",
                                          .workers = static_cast<int>(plan.number("world"))};
    options.deadline_seconds = static_cast<double>(plan.number("deadline"));
    options.checked_sums = plan.text("checked") == "True";
    thinwire::apps::run_on_engine(options, body);
  });
}
