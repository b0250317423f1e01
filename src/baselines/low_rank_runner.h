#pragma once
// For the tests of systems of low rank: matrices with known singular values, and one rank's steps.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "baselines/baselines.h"
#include "tests/random_values.h"
#include "thinwire/in_process.h"
#include "thinwire/registry.h"

namespace thinwire::low_rank_test {

/// Sum over k of singular[k] u_k v_k^T with random u and v, [rows x columns].
inline std::vector<float> matrix_of(std::size_t rows, std::size_t columns,
                                    const std::vector<double>& singular) {
  std::vector<float> matrix(rows * columns);
  for (std::size_t k = 0; k < singular.size(); ++k) {
    const auto u = normal_values(rows, static_cast<std::uint32_t>(2 * k + 1));
    const auto v = normal_values(columns, static_cast<std::uint32_t>(2 * k + 2));
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        matrix[i * columns + j] += static_cast<float>(singular[k] * static_cast<double>(u[i] * v[j]));
      }
    }
  }
  return matrix;
}

inline double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// One rank's system with the workspace and shapes that a session would hold.
struct Runner {
  Runner(const std::string& spec, Communicator& with)
      : pipeline(registry().make(spec)), communicator(with), executor(make_cpu_executor(1)) {}

  static const Registry& registry() {
    static const Registry all = [] {
      Registry made;
      made.add(power_sgd_info());
      made.add(acp_sgd_info());
      return made;
    }();
    return all;
  }

  StepReport step(std::vector<float>& gradient, std::vector<float>& residual) {
    workspace.reset();
    const std::vector<std::size_t> shape_ends = ends.empty() ? std::vector{gradient.size()} : ends;
    Step now{.communicator = communicator,
             .executor = *executor,
             .workspace = workspace,
             .index = index,
             .seed = 5,
             .parameter_ends = shape_ends,
             .parameter_rows = rows};
    const Traffic before = communicator.traffic();
    pipeline.synchronizer->synchronize(0, gradient, residual, now);
    now.report.wire = communicator.traffic() - before;
    now.report.formula_bytes = pipeline.synchronizer->payload_bytes({.elements = gradient.size(),
                                                                     .world_size = communicator.size(),
                                                                     .rank = communicator.rank(),
                                                                     .step = index,
                                                                     .parameter_ends = shape_ends,
                                                                     .parameter_rows = rows});
    ++index;
    return now.report;
  }

  Pipeline pipeline;
  Communicator& communicator;
  std::unique_ptr<Executor> executor;
  Workspace workspace;
  std::vector<std::size_t> ends, rows;
  std::uint64_t index = 0;
};

}  // namespace thinwire::low_rank_test
