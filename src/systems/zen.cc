// Zen: lossless synchronization of sparse gradients through hashed owners.
//
// Paper: Z. Wang et al., "Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization",
// OSDI 2025 (shared as zen.txt). Section 3.1 is Balanced Parallelism, 3.2 the hash that balances it, 3.3 the
// hash bitmap, 2.2 the choice between it and Hierarchical Centralization.
//
// Way of the data in Balanced Parallelism (sparse/push_pull.cc), for elements or for rows alike:
//
//   non-zeros --pi--> places --split by owner--> push: row_list --> owner: sums in rank order, / W
//     --pull: hash bitmap or row_list, whichever is smaller--> everyone --pi^-1--> rows of the mean
//
// pi is a seeded bijection of the table's rows, drawn anew for every step and bucket and the same on all
// ranks. Owner p has the places [p d/W, (p+1) d/W): whatever pattern the non-zeros have, each owner gets
// about the same number of them. A pull's bitmap has one bit for each place that its owner has.
//
// Hierarchical Centralization (sparse/recursive_doubling.cc) is the other scheme that can be optimal.
// scheme=auto runs push/pull for profile_steps steps, predicts the time of both from the bytes that each
// would really send (zen_selector.h) and keeps the faster one.
//
// Bytes per rank, push/pull: (4 + 4 width) per row that another rank owns, and (W-1) (|I_p| / 8 + 4 width
// |U_p|), about (W-1)/W * (8 nnz + 4 gamma nnz + d/8) for single elements.
//
// Deviations from the paper:
// - pi replaces the table of I_p (4 bytes per index and rank) that the paper sorts offline: encoding and
// decoding
//   compute places instead of looking them up.
// - On the CPU the split is a counting sort. Algorithm 1, which a GPU needs, is kernels/hierarchical_hash.h.
// - A pull is a list where the union is so sparse that a bitmap would be larger (below 1/32 for single
// elements); the
//   paper always sends the bitmap.
// - Equations (1) and (2) assume lists in both phases and a power of two of ranks; predictions here count the
//   encoded sizes, for any number.

#include "systems/zen.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/philox.h"
#include "sparse/recursive_doubling.h"
#include "sparse/sparse_synchronizer.h"
#include "systems/zen_selector.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

enum class Scheme { automatic, push_pull, centralization };

struct ZenConfig {
  Scheme scheme = Scheme::automatic;
  std::uint64_t profile_steps = 4;
  LinkModel link;
};

/// Centralization adds in another order than the dense sum does and its sums grow on fewer ranks: it has to
/// be clearly faster to be chosen.
constexpr double kClearlyFaster = 0.95;

class Zen final : public SparseSynchronizer {
 public:
  explicit Zen(const ZenConfig& config) : config_(config) {}

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    if (e.world == 1) return 0;
    if (config_.scheme == Scheme::centralization) {
      return recursive_doubling_bytes(e.rows, e.union_rows, e.world,
                                      static_cast<std::uint64_t>(workload.rank), e.width);
    }
    const std::uint64_t owned = e.table_rows / e.world;
    const std::uint64_t result = e.union_rows / e.world;
    return row_list_bytes(e.rows - e.rows / e.world, e.width) +
           (e.world - 1) *
               std::min(row_bitmap_bytes(owned, result, e.width), row_list_bytes(result, e.width));
  }

  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, profile] : profiles_) {
      auto put = [&](const char* kind, double value) {
        std::vector<float> values(profile.parameters, static_cast<float>(value));
        writer.values(kind, bucket, Span<const float>(values));
      };
      put("zen_profiled", static_cast<double>(profile.steps));
      put("zen_push_pull_seconds", profile.seconds.push_pull);
      put("zen_centralization_seconds", profile.seconds.centralization);
    }
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, Profile> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      Profile profile;
      profile.parameters = reader.parameters(bucket);
      std::vector<float> values(profile.parameters);
      auto get = [&](const char* kind, auto& into) {
        if (values.empty() || !reader.values(kind, bucket, Span<float>(values))) return false;
        into = static_cast<std::remove_reference_t<decltype(into)>>(values.front());
        return true;
      };
      if (get("zen_profiled", profile.steps) && get("zen_push_pull_seconds", profile.seconds.push_pull) &&
          get("zen_centralization_seconds", profile.seconds.centralization)) {
        loaded[bucket] = profile;
      }
    }
    profiles_ = std::move(loaded);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    if (config_.scheme == Scheme::automatic) return exchange_as_predicted(bucket, own, finite, step);
    return config_.scheme == Scheme::push_pull ? through_owners(bucket, own, finite, step, nullptr)
                                               : centralized(bucket, own, finite, step);
  }

 private:
  /// Of one bucket. Sums over the steps profiled so far, in floats' precision, so that a resumed run decides
  /// alike.
  struct Profile {
    std::uint64_t steps = 0;
    PredictedSeconds seconds;
    std::size_t parameters = 1;
  };

  RowMean exchange_as_predicted(BucketId bucket, const RowSparse& own, bool finite, Step& step) {
    Profile& profile = profiles_[bucket];
    if (profile.steps >= config_.profile_steps) {
      const bool centralize = profile.seconds.centralization < kClearlyFaster * profile.seconds.push_pull;
      return centralize ? centralized(bucket, own, finite, step)
                        : through_owners(bucket, own, finite, step, nullptr);
    }
    profile.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    SchemeProfile watching(step, own.width);
    const RowMean mean = through_owners(bucket, own, finite, step, &watching);
    const PredictedSeconds predicted = watching.predict(config_.link);
    if (mean.finite) {
      auto add = [](double& sum, double seconds) {
        sum = static_cast<double>(static_cast<float>(sum + seconds));
      };
      add(profile.seconds.push_pull, predicted.push_pull);
      add(profile.seconds.centralization, predicted.centralization);
      ++profile.steps;
    }
    return mean;
  }

  RowMean through_owners(BucketId bucket, const RowSparse& own, bool finite, Step& step,
                         PushPullObserver* observer) {
    step.report.scheme = "push_pull";
    const RandomStream stream = random_stream(step.seed, step.index, bucket, RandomPurpose::ownership);
    return push_pull(bucket, own, finite, {.places = IndexPermutation::make(own.rows, stream)}, storage_,
                     step, observer);
  }

  RowMean centralized(BucketId bucket, const RowSparse& own, bool finite, Step& step) {
    step.report.scheme = "centralization";
    return recursive_doubling(bucket, own, finite, storage_, step);
  }

  ZenConfig config_;
  RowMessageStorage storage_;
  std::map<BucketId, Profile> profiles_;
};

}  // namespace

SystemInfo zen_info() {
  SystemInfo info;
  info.name = "zen";
  info.summary = "lossless: non-zeros to hashed owners and back as bitmaps";
  info.paper = "Wang et al., Zen, OSDI 2025";
  info.formula =
      "8 per non-zero of other owners + (W-1) * (|I_p|/8 + 4 |U_p|): about (W-1)/W * (8 nnz + 4 gamma nnz + "
      "d/8)";
  info.lossless = true;
  info.takes_rows = true;
  info.options = {
      {"scheme", "auto", "push_pull, centralization, or auto: the one that is predicted to be faster"},
      {"profile_steps", "4", "steps off which auto predicts, 1 to 1000"},
      {"gbit", "0", "what auto reckons with, in Gbit/s; 0: measure the link"},
      {"latency_us", "50", "what auto reckons with, in microseconds, unless it measures"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    ZenConfig config;
    const std::string scheme = options.choice("scheme", {"auto", "push_pull", "centralization"});
    config.scheme = scheme == "auto"        ? Scheme::automatic
                    : scheme == "push_pull" ? Scheme::push_pull
                                            : Scheme::centralization;
    config.profile_steps = static_cast<std::uint64_t>(options.integer("profile_steps", 1, 1000));
    config.link = {.latency_seconds = options.real("latency_us", 0, 1e9) * 1e-6,
                   .bytes_per_second = options.real("gbit", 0, 1e6) * 1e9 / 8};
    return std::make_unique<Zen>(config);
  };
  return info;
}

}  // namespace thinwire
