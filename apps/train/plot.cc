#include "plot.h"

#include "apps/plot_script.h"

namespace thinwire::train {

void plot_results(const std::string& json, const std::string& png) {
  apps::run_plot_script("plot_training.py", json, png);
}

}  // namespace thinwire::train
