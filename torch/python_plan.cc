#include "torch/python_plan.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/link_text.h"
#include "session/plan.h"

namespace py = pybind11;

namespace thinwire {
namespace {

/// (name, elements, leading dimension)
using PlannedParameter = std::tuple<std::string, std::size_t, std::size_t>;

/// Of each number of workers a table and its rows as JSON objects, separated by commas.
std::vector<std::pair<std::string, std::string>> plan_all(
    const std::vector<std::vector<PlannedParameter>>& buckets, std::vector<double> ready, double backward_end,
    double rest, double threads, std::vector<std::string> specs, const std::vector<int>& workers,
    const std::string& link, int ranks_per_host, double cores, std::size_t lanes) {
  const VirtualLink parsed = parse_link(link);
  PlanRequest request{.compute = {std::move(ready), backward_end, rest, threads},
                      .specs = specs.empty() ? candidates_of_auto() : std::move(specs),
                      .ranks_per_host = ranks_per_host,
                      .cores = cores,
                      .lanes = lanes};
  for (const auto& bucket : buckets) {
    BucketLayout layout;
    for (const auto& [name, elements, rows] : bucket) layout.push_back({name, elements, rows});
    request.buckets.push_back(std::move(layout));
  }
  StepPlanner planner(std::move(request));
  std::vector<std::pair<std::string, std::string>> texts;
  for (const int one : workers) {
    const Plan plan = planner.plan(one, parsed);
    const PlansElsewhere elsewhere = planner.plan_elsewhere(one, parsed);
    texts.emplace_back(plan_table(planner.request(), plan, elsewhere),
                       plan_json(planner.request(), plan, elsewhere));
  }
  return texts;
}

}  // namespace

void add_plan(py::module& module) {
  module.def("plan", &plan_all, py::kw_only(), py::arg("buckets"), py::arg("ready"), py::arg("backward_end"),
             py::arg("rest"), py::arg("threads"), py::arg("specs"), py::arg("workers"), py::arg("link"),
             py::arg("ranks_per_host"), py::arg("cores"), py::arg("lanes"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace thinwire
