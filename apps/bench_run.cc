#include "apps/bench_run.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "thinwire/session.h"

namespace thinwire::apps {
namespace {

template <class T>
std::vector<T> gather(Communicator& communicator, Span<const T> mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(as_bytes(mine), as_writable_bytes(Span<T>(all)));
  return all;
}

void add_rows_to(std::vector<float>& table, const RowSparse& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    float* target = table.data() + rows.row_indices[i] * rows.width;
    for (std::size_t j = 0; j < row.size(); ++j) target[j] += row[j];
  }
}

/// One system on one rank: steps to warm up, then the measured ones, then the checks.
class Run {
 public:
  Run(const std::string& spec, const GradientSource& source, Communicator& communicator,
      const BenchRunOptions& options)
      : options_(options),
        communicator_(communicator),
        shape_(source.buckets()[0]),
        session_(spec, communicator,
                 {.seed = options.seed, .threads = options.threads, .configuration = options.configuration}) {
    if (shape_.row_sparse) {
      session_.add_rows(shape_.parameters[0].name, shape_.rows, shape_.width);
      rows_in_ = source.rows(communicator.rank(), 0, 0, buffer_);
    } else {
      session_.add_bucket(shape_.parameters);
      input_.resize(shape_.elements());
      mean_.resize(shape_.elements());
      source.dense(communicator.rank(), 0, 0, input_);
    }
  }

  Measurement run(const std::string& spec) {
    session_.start();
    for (int i = 0; i < options_.warm_up; ++i) step();  // buffers are allocated, step sizes agreed
    std::vector<double> seconds;
    RankMeasurement mine;
    for (int i = 0; i < options_.steps; ++i) {
      if (i + 1 == options_.steps) remember_input();
      seconds.push_back(step());
      mine.begin_step();
      mine.add(session_.report(0));
    }
    mine.divide(options_.steps);
    shape_.row_sparse ? mine.hash_in(rows_out_) : mine.hash_in(Span<const float>(mean_));

    Measurement result;
    result.spec = spec;
    result.canonical_spec = session_.spec();
    result.engine = communicator_.engine();
    result.workers = communicator_.size();
    result.elements = shape_.elements();
    result.row_width = shape_.width;
    result.steps = options_.steps;
    result.seed = options_.seed;
    result.ranks = gather(communicator_, Span<const RankMeasurement>(&mine, 1));
    // A step is as slow as its slowest rank.
    const auto all_seconds = gather(communicator_, Span<const double>(seconds));
    result.step_seconds.resize(seconds.size());
    for (std::size_t i = 0; i < all_seconds.size(); ++i) {
      double& slowest = result.step_seconds[i % seconds.size()];
      slowest = std::max(slowest, all_seconds[i]);
    }
    if (shape_.row_sparse) {
      result.density_in = session_.report(0).density_in;
      result.density_out = session_.report(0).density_out;
      mean_.assign(shape_.elements(), 0.0f);
      add_rows_to(mean_, rows_out_);
    } else {
      const auto elements = static_cast<double>(shape_.elements());
      result.density_in = static_cast<double>(count_non_zeros(input_)) / elements;
      result.density_out = static_cast<double>(count_non_zeros(mean_)) / elements;
    }
    if (!shape_.row_sparse) result.seconds_copy = seconds_copy_;
    check(result);
    return result;
  }

 private:
  double step() {
    if (shape_.row_sparse) {
      communicator_.barrier();
      rows_out_ = session_.synchronize_rows(0, rows_in_);
    } else {
      const double start = communicator_.now_seconds();
      std::memcpy(mean_.data(), input_.data(), input_.size() * sizeof(float));
      seconds_copy_ = std::min(seconds_copy_, communicator_.now_seconds() - start);
      communicator_.barrier();
      session_.synchronize(0, mean_);
    }
    session_.next_step();
    return session_.report(0).seconds_total;
  }

  /// wanted_ = gradient + residual of the step to come.
  void remember_input() {
    wanted_ = input_;
    if (shape_.row_sparse) {
      wanted_.assign(shape_.elements(), 0.0f);
      add_rows_to(wanted_, rows_in_);
    }
    const auto residual = session_.residual(0);
    for (std::size_t i = 0; i < residual.size(); ++i) wanted_[i] += residual[i];
  }

  /// Both errors of the last step, from sums over ranks that the engine takes densely.
  void check(Measurement& result) {
    const auto world = static_cast<float>(communicator_.size());
    std::vector<float> exact = wanted_;
    communicator_.all_reduce_sum(exact);
    std::vector<float> kept = wanted_;
    const auto residual = session_.residual(0);
    for (std::size_t i = 0; i < residual.size(); ++i) kept[i] -= residual[i];
    communicator_.all_reduce_sum(kept);
    const double size = norm(exact);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] = mean_[i] - exact[i] / world;
      kept[i] -= world * mean_[i];
    }
    result.relative_error = size > 0 ? norm(exact) / (size / static_cast<double>(world)) : 0;
    if (session_.pipeline(0).conserves) result.conservation_error = size > 0 ? norm(kept) / size : 0;
  }

  const BenchRunOptions& options_;
  Communicator& communicator_;
  BucketShape shape_;
  Session session_;
  RowBuffer buffer_;
  RowSparse rows_in_;
  RowSparse rows_out_;
  std::vector<float> input_;
  std::vector<float> mean_;
  std::vector<float> wanted_;
  double seconds_copy_ = std::numeric_limits<double>::infinity();
};

}  // namespace

Measurement bench_run(const std::string& spec, const GradientSource& source, Communicator& communicator,
                      const BenchRunOptions& options) {
  return Run(spec, source, communicator, options).run(spec);
}

}  // namespace thinwire::apps
