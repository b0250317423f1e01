#include "apps/simulation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "exchange/host_groups.h"
#include "thinwire/session.h"

namespace thinwire::apps {
namespace {

/// What the ranks of the last step have in common. No locks: of a virtual network's ranks one runs at a time.
struct Shared {
  Shared(const std::vector<BucketShape>& shapes, int workers) : ranks(static_cast<std::size_t>(workers)) {
    for (const auto& shape : shapes) {
      wanted.emplace_back(shape.elements(), 0.0);
      in_union.emplace_back((shape.elements() + 63) / 64, 0u);
    }
    kept = wanted;
  }

  std::vector<std::vector<double>> wanted;           ///< By bucket: sums of gradient + residual.
  std::vector<std::vector<double>> kept;             ///< wanted less the residuals afterwards.
  std::vector<std::vector<std::uint64_t>> in_union;  ///< A bit per element that is not zero in some rank.
  std::uint64_t non_zeros = 0;                       ///< Added up over ranks.
  std::vector<RankMeasurement> ranks;
  std::vector<VirtualInterval> intervals;  ///< By step.
  Simulation result;
};

/// The elements of a gradient that are not zero: visit(index, value).
template <class Visit>
void visit_non_zeros(Span<const float> gradient, Visit visit) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (gradient[i] != 0) visit(i, gradient[i]);
  }
}

template <class Visit>
void visit_non_zeros(const RowSparse& gradient, Visit visit) {
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    const std::size_t begin = gradient.row_indices[k] * gradient.width;
    for (std::size_t j = 0; j < gradient.width; ++j) visit(begin + j, gradient.row(k)[j]);
  }
}

/// One rank.
class SimulatedRun {
 public:
  SimulatedRun(const std::string& spec, const GradientSource& source, const SimulationOptions& options,
               VirtualCommunicator& communicator, Shared& shared)
      : source_(source),
        options_(options),
        communicator_(communicator),
        shared_(shared),
        // A simulated step never has to be undone, and many ranks' copies are many.
        session_(
            spec, communicator,
            {.seed = options.seed, .undoes_steps = false, .ranks_per_host = options.hosts.ranks_per_host}) {
    const HostGroups groups(communicator, options.hosts.ranks_per_host);
    for (const auto& shape : source.buckets()) {
      parts_.push_back(part_of(shape, groups));
      shape.row_sparse ? session_.add_rows(shape.parameters[0].name, shape.rows, shape.width)
                       : session_.add_bucket(shape.parameters);
      buckets_.emplace_back();
      if (!shape.row_sparse) buckets_.back().dense.resize(shape.rows);
    }
  }

  void run() {
    session_.start();
    RankMeasurement& mine = shared_.ranks[static_cast<std::size_t>(communicator_.rank())];
    const int all_steps = options_.warm_up + options_.steps;
    for (int step = 0; step < all_steps; ++step) {
      const bool last = step + 1 == all_steps;
      const bool errors = options_.errors && step >= options_.warm_up;
      load(static_cast<std::uint64_t>(step));
      if (errors) forget_input();
      if (errors || last) remember_input();
      if (last) count_input();
      communicator_.align();
      if (options_.codec.measured) communicator_.charge_cpu_time(options_.link.scale);
      for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) synchronize(bucket);
      communicator_.charge_cpu_time(0);
      const VirtualInterval interval = communicator_.align();
      session_.next_step();
      if (step < options_.warm_up) continue;
      if (errors && communicator_.rank() == 0) compare_step();
      if (communicator_.rank() == 0) shared_.intervals.push_back(interval);
      mine.begin_step();
      for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) mine.add(session_.report(bucket));
    }
    mine.divide(options_.steps);
    remember_output(mine);
    communicator_.align();
    if (communicator_.rank() == 0) finish();
  }

 private:
  struct Bucket {
    std::vector<float> dense;
    RowBuffer buffer;
    RowSparse rows;
  };

  /// What the system has of the bucket on this rank.
  static std::vector<VectorChunk> part_of(const BucketShape& shape, const HostGroups& groups) {
    if (!shape.row_sparse) return groups.parts(shape.parameters).slices[groups.place()];
    const auto begins = groups.parts_of_rows(shape.rows);
    const std::size_t begin = begins[groups.place()] * shape.width;
    return {{.begin = begin, .count = begins[groups.place() + 1] * shape.width - begin}};
  }

  bool row_sparse(BucketId bucket) const { return source_.buckets()[bucket].row_sparse; }

  void load(std::uint64_t step) {
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      Bucket& own = buckets_[bucket];
      if (row_sparse(bucket)) {
        own.rows = source_.rows(communicator_.rank(), step, bucket, own.buffer);
      } else {
        source_.dense(communicator_.rank(), step, bucket, own.dense);
      }
    }
  }

  void synchronize(BucketId bucket) {
    const CodecModel& codec = options_.codec;
    double half = 0;
    if (!codec.measured && codec.elements_per_second > 0) {
      half = static_cast<double>(source_.buckets()[bucket].elements()) / options_.hosts.ranks_per_host *
             options_.link.scale / codec.elements_per_second / 2;
    }
    communicator_.advance(half);
    if (row_sparse(bucket)) {
      buckets_[bucket].rows = session_.synchronize_rows(bucket, buckets_[bucket].rows);
    } else {
      session_.synchronize(bucket, buckets_[bucket].dense);
    }
    communicator_.advance(half);
  }

  template <class Visit>
  void visit(BucketId bucket, Visit what) const {
    const Bucket& own = buckets_[bucket];
    if (row_sparse(bucket)) return visit_non_zeros(own.rows, what);
    visit_non_zeros(Span<const float>(own.dense), what);
  }

  /// What was not delivered: visit(index, value). It is of a host's mean, and so of each of its ranks.
  template <class Visit>
  void visit_residual(BucketId bucket, Visit what) const {
    const auto residual = session_.residual(bucket);
    if (residual.empty()) return;
    for (const VectorChunk& chunk : parts_[bucket]) {
      for (std::size_t i = 0; i < chunk.count; ++i) {
        what(chunk.begin + i,
             static_cast<double>(residual[chunk.offset + i]) * options_.hosts.ranks_per_host);
      }
    }
  }

  /// That of the step before. Its clock stands still: align() is free.
  void forget_input() {
    communicator_.align();
    if (communicator_.rank() == 0) {
      for (auto& wanted : shared_.wanted) std::fill(wanted.begin(), wanted.end(), 0.0);
    }
    communicator_.align();
  }

  void remember_input() {
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      auto& wanted = shared_.wanted[bucket];
      visit(bucket, [&](std::size_t i, float value) { wanted[i] += static_cast<double>(value); });
      visit_residual(bucket, [&](std::size_t i, double value) { wanted[i] += value; });
    }
  }

  void count_input() {
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      auto& in_union = shared_.in_union[bucket];
      const Bucket& own = buckets_[bucket];
      if (row_sparse(bucket)) {
        // The gradient may list rows more than once.
        const std::set<std::uint32_t> rows(own.rows.row_indices.begin(), own.rows.row_indices.end());
        shared_.non_zeros += rows.size() * own.rows.width;
      } else {
        shared_.non_zeros += count_non_zeros(own.dense);
      }
      visit(bucket, [&](std::size_t i, float) { in_union[i / 64] |= std::uint64_t{1} << (i % 64); });
    }
  }

  /// From what all ranks remembered and this rank's mean; before any rank goes on to another step's input.
  void compare_step() const {
    double exact_squares = 0;
    double error_squares = 0;
    std::uint64_t signs = 0;
    std::uint64_t agreeing = 0;
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      const std::vector<double>& exact = shared_.wanted[bucket];
      std::vector<double> error = exact;
      for (const double one : exact) {
        exact_squares += one * one;
        signs += one != 0 ? 1 : 0;
      }
      visit(bucket, [&](std::size_t i, float mean) {
        error[i] -= static_cast<double>(mean) * options_.workers;
        agreeing += static_cast<double>(mean) * exact[i] > 0 ? 1 : 0;
      });
      for (const double one : error) error_squares += one * one;
    }
    shared_.result.relative_errors.push_back(exact_squares > 0 ? std::sqrt(error_squares / exact_squares)
                                                               : 0);
    shared_.result.sign_agreements.push_back(
        signs > 0 ? static_cast<double>(agreeing) / static_cast<double>(signs) : 1);
  }

  void remember_output(RankMeasurement& mine) {
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      const Bucket& own = buckets_[bucket];
      if (row_sparse(bucket)) {
        mine.hash_in(own.rows);
      } else {
        mine.hash_in(Span<const float>(own.dense));
      }
      auto& kept = shared_.kept[bucket];
      visit_residual(bucket, [&](std::size_t i, double value) { kept[i] -= value; });
    }
  }

  /// When all ranks are done.
  void finish() {
    Simulation& result = shared_.result;
    result.measurement = measurement();
    std::vector<double> seconds;
    for (const auto& interval : shared_.intervals) seconds.push_back(interval.seconds);
    const double middle = median(seconds);
    const auto of_middle = std::find_if(shared_.intervals.begin(), shared_.intervals.end(),
                                        [&](const auto& interval) { return interval.seconds == middle; });
    result.measurement.step_seconds = seconds;
    result.measurement.modelled_seconds = middle;
    result.formula_seconds = of_middle->formula_seconds;
    result.stages = of_middle->stages;
    std::uint64_t in_union = 0;
    for (const auto& words : shared_.in_union) {
      for (const std::uint64_t word : words) in_union += static_cast<std::uint64_t>(std::popcount(word));
    }
    if (shared_.non_zeros > 0) {
      result.gamma =
          static_cast<double>(in_union) * options_.workers / static_cast<double>(shared_.non_zeros);
    }
  }

  Measurement measurement() {
    Measurement result;
    result.canonical_spec = session_.spec();
    result.engine = communicator_.engine();
    result.workers = options_.workers;
    result.steps = options_.steps;
    result.seed = options_.seed;
    result.virtual_clock = true;
    result.ranks = shared_.ranks;
    result.row_width = source_.buckets()[0].width;
    bool conserves = true;
    double exact_squares = 0;
    double error_squares = 0;
    double loss_squares = 0;
    std::uint64_t delivered = 0;
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      result.elements += source_.buckets()[bucket].elements();
      conserves = conserves && session_.pipeline(bucket).conserves;
      auto& error = shared_.wanted[bucket];
      auto& loss = shared_.kept[bucket];
      for (std::size_t i = 0; i < error.size(); ++i) {
        exact_squares += error[i] * error[i];
        loss[i] += error[i];
      }
      visit(bucket, [&](std::size_t i, float mean) {
        error[i] -= static_cast<double>(mean) * options_.workers;
        loss[i] -= static_cast<double>(mean) * options_.workers;
        ++delivered;
      });
      for (std::size_t i = 0; i < error.size(); ++i) {
        error_squares += error[i] * error[i];
        loss_squares += loss[i] * loss[i];
      }
    }
    const double elements = std::max(1.0, static_cast<double>(result.elements));
    result.density_in = static_cast<double>(shared_.non_zeros) / options_.workers / elements;
    result.density_out = static_cast<double>(delivered) / elements;
    const auto relative = [&](double squares) {
      return exact_squares > 0 ? std::sqrt(squares / exact_squares) : 0;
    };
    result.relative_error = relative(error_squares);
    if (conserves) result.conservation_error = relative(loss_squares);
    return result;
  }

  const GradientSource& source_;
  const SimulationOptions& options_;
  VirtualCommunicator& communicator_;
  Shared& shared_;
  Session session_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<VectorChunk>> parts_;  // by bucket
};

}  // namespace

nlohmann::ordered_json to_json(const Simulation& simulation) {
  auto json = to_json(simulation.measurement);
  json["gamma"] = simulation.gamma;
  json["formula_seconds"] = simulation.formula_seconds;
  json["stages"] = simulation.stages;
  json["relative_errors"] = nullptr;
  json["sign_agreements"] = nullptr;
  if (!simulation.relative_errors.empty()) {
    json["relative_errors"] = simulation.relative_errors;
    json["sign_agreements"] = simulation.sign_agreements;
  }
  return json;
}

Simulation simulate(const std::string& spec, const GradientSource& source, const SimulationOptions& options) {
  Shared shared(source.buckets(), options.workers);
  VirtualHosts hosts = options.hosts;
  hosts.inside.scale = options.link.scale;
  run_virtual(
      options.workers, options.link,
      [&](VirtualCommunicator& communicator) {
        SimulatedRun(spec, source, options, communicator, shared).run();
      },
      hosts);
  shared.result.measurement.spec = spec;
  return shared.result;
}

}  // namespace thinwire::apps
