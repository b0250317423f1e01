// Zen: lossless synchronization of sparse gradients through hashed owners.
//
// Paper: Z. Wang et al., "Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization",
// OSDI 2025. Section 3.1 is Balanced Parallelism, 3.2 the hash that balances it, 3.3 the hash bitmap, 2.3 the
// choice between it and Hierarchical Centralization.
//
// Balanced Parallelism (exchange/push_pull.h), for elements or for rows alike:
//
//   non-zeros --pi--> slots --split by owner--> push: row_list
//     --> owner: sums in rank order, / W
//     --pull: hash bitmap or row_list, the smaller of the two unless `pull` says which--> everyone
//     --pi^-1--> rows of the mean
//
// pi is a seeded bijection of the table's rows, drawn anew for every step and bucket, the same on all ranks.
// Owner p has the slots [p d/W, (p+1) d/W). So each owner gets about the same number of non-zeros, whatever
// pattern they have. A pull's bitmap has one bit for each slot that its owner has.
//
// Where every rank has non-zeros enough for the balance to bear it, pi moves blocks of neighbours, up to a
// page. Then the scattered reads and writes of a table share cache lines (block_bits_for below).
//
// Hierarchical Centralization (exchange/push_pull.h) is the other scheme that can be optimal.
// scheme=auto runs push and pull for profile_steps steps. It predicts the time of both schemes from the bytes
// that each would really send (SchemeProfile), and keeps the faster one.
//
// Bytes per rank, push and pull: (4 + 4 width) per row that another rank owns, and (W-1) (|I_p| / 8 + 4 width
// |U_p|). For single elements that is about (W-1)/W * (8 nnz + 4 gamma nnz + d/8).
//
// In a reduce-scatter the owner of an element is given, and keeps the sum. So pi leaves elements where they
// are, nothing is pulled, and the options of the scheme have no meaning.
//
// Deviations from the paper:
// - pi replaces the table of I_p (4 bytes per index and rank) that the paper sorts offline. Encoding and
//   decoding compute slots instead of looking them up.
// - Rows are split by a stable sort, on a GPU as on a CPU. Frames list them in order, and what is sent must
//   not depend on which thread came first. split=hash takes Algorithm 1 (kernels/rows/hash_partition.h), with
//   its k, r1 and r2 as options, and puts in order what each owner got. Both send the same bytes.
// - split=thresholds is what the paper argues against (section 3.1): no hash, but the union of a step's
//   indices cut evenly, whose cuts are the owners' thresholds for the next steps, 1000 in the paper. Every
//   rank has the union when the pull ends, in order: thresholds cost no message and no sort. Without any,
//   in the first step and after a state was loaded, owners have even slices of the table.
// - A pull is a list where the union is so sparse that a bitmap would be larger: below 1/32 for single
//   elements. The paper always sends the bitmap, as pull=bitmap does.
// - Equations (1) and (2) assume lists in both phases and a power of two of ranks. Predictions here count the
//   encoded sizes, for any number.

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "comm/link_probe.h"
#include "core/bucket_vectors.h"
#include "core/partition.h"
#include "core/philox.h"
#include "exchange/collectives.h"
#include "exchange/push_pull.h"
#include "exchange/sparse_synchronizer.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/hash_partition.h"
#include "systems/systems.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

struct LinkModel {
  double latency_seconds = 0;
  double bytes_per_second = 0;   ///< 0: measure.
  std::size_t probed_bytes = 0;  ///< Of the messages that have measured it; 0: it was given.
};

/// Seconds that a step's exchange is predicted to take.
struct PredictedSeconds {
  double push_pull = 0;
  double centralization = 0;
};

/// Zen's choice between its two schemes (section 2.2), of one push/pull exchange: what both would cost. The
/// owners see what every rank pushed. So they can count the unions that Hierarchical Centralization would
/// send, without it being run.
class SchemeProfile {
 public:
  /// Counts the unions that the doubling would send, as far as this rank owns them. After merge().
  /// dense_bytes: of the bucket.
  SchemeProfile(const PushPull& exchange, std::size_t width, std::size_t dense_bytes, Step& step)
      : step_(step), width_(width), dense_bytes_(dense_bytes) {
    const auto counts = step.workspace.take<float>(2 * power_ - 1 + world_);
    std::ranges::fill(counts, 0.0f);
    group_rows_ = counts.first(2 * power_ - 1);
    rank_rows_ = counts.subspan(2 * power_ - 1, world_);
    count_unions(exchange);
  }

  /// After pull(). The same on all ranks: from everyone's counts, and the means of everyone's measurements
  /// where `link` leaves something to measure; what was measured here is written there, for the next bucket.
  /// Adds what it sends to report.formula_bytes. Collective.
  PredictedSeconds predict(const PushPull& exchange, LinkModel& link) {
    const auto records = gather(step_, record_of(exchange, link));
    step_.report.formula_bytes += (world_ - 1) * sizeof(Record);
    // Counts above 2^24 lose their last digits in floats, which a prediction can bear.
    const Span<float> counts(group_rows_.data(), group_rows_.size() + rank_rows_.size());
    all_reduce_sum(step_, counts);
    step_.report.formula_bytes += step_.communicator.ring_sent_bytes(counts.size(), sizeof(float));
    return seconds_of(records);
  }

 private:
  /// What one rank tells the others.
  struct Record {
    double push_sent, push_received, pull_sent, pull_received;  // bytes
    double latency_seconds, bytes_per_second;
  };

  void count_unions(const PushPull& exchange) {
    const std::size_t words = bitmap_words(exchange.owned_slots());
    const auto unions = step_.workspace.take<std::uint64_t>(power_ * words);
    std::ranges::fill(unions, 0);
    for (std::size_t rank = 0; rank < world_; ++rank) {
      const auto slots = exchange.merged_slots()[rank];
      set_bits(step_.executor, slots, unions.subspan(rank % power_ * words, words));
      if (rank != self_) push_received_ += slots.size();
    }
    std::size_t at = 0;
    for (std::size_t groups = power_;; groups /= 2) {
      for (std::size_t g = 0; g < groups; ++g) {
        std::uint64_t rows = 0;
        for (const std::uint64_t word : unions.subspan(g * words, words)) {
          rows += static_cast<std::uint64_t>(std::popcount(word));
        }
        group_rows_[at++] = static_cast<float>(rows);
      }
      if (groups == 1) break;
      // Neighbours merge; group g of the next level lies where its first half lay, moved to the front.
      for (std::size_t g = 0; g < groups / 2; ++g) {
        for (std::size_t w = 0; w < words; ++w) {
          unions[g * words + w] = unions[2 * g * words + w] | unions[(2 * g + 1) * words + w];
        }
      }
    }
  }

  /// By messages that are no larger than the bucket, for which alone it has to be right: larger ones can take
  /// many seconds on a slow network. A larger bucket has it measured again.
  void measure(LinkModel& link) {
    const std::size_t bytes = std::clamp(dense_bytes_, kLinkProbeLeastBytes, kLinkProbeLargeBytes);
    const bool was_given = link.bytes_per_second != 0 && link.probed_bytes == 0;
    if (was_given || (link.bytes_per_second != 0 && bytes <= link.probed_bytes)) return;
    const MeasuredLink measured =
        measure_link(step_.communicator, step_.workspace.take<std::byte>(kLinkProbeScratchBytes), bytes);
    link = {measured.latency_seconds, measured.bytes_per_second, bytes};
    step_.report.formula_bytes += link_probe_bytes(bytes);
  }

  Record record_of(const PushPull& exchange, LinkModel& link) {
    measure(link);
    const auto pushed = exchange.pushed_rows();
    const auto pulled = exchange.pulled_bytes();
    const std::size_t rows = std::accumulate(pushed.begin(), pushed.end(), std::size_t{0});
    const std::uint64_t all_pulls = std::accumulate(pulled.begin(), pulled.end(), std::uint64_t{0});
    rank_rows_[self_] = static_cast<float>(rows);
    return {.push_sent = static_cast<double>(row_list_bytes(rows - pushed[self_], width_)),
            .push_received = static_cast<double>(row_list_bytes(push_received_, width_)),
            .pull_sent = static_cast<double>((world_ - 1) * pulled[self_]),
            .pull_received = static_cast<double>(all_pulls - pulled[self_]),
            .latency_seconds = link.latency_seconds,
            .bytes_per_second = link.bytes_per_second};
  }

  PredictedSeconds seconds_of(Span<const Record> records) const {
    auto most = [&](double Record::*one, double Record::*other) {
      double value = 0;
      for (const Record& record : records) value = std::max({value, record.*one, record.*other});
      return value;
    };
    auto mean = [&](double Record::*field) {
      double sum = 0;
      for (const Record& record : records) sum += record.*field;
      return sum / static_cast<double>(world_);
    };
    auto harmonic_mean = [&](double Record::*field) {
      double sum = 0;
      for (const Record& record : records) sum += 1 / record.*field;
      return static_cast<double>(world_) / sum;
    };
    const double latency = mean(&Record::latency_seconds);
    // Where messages are small, a rank may have measured hardly any time for one.
    const double rate = harmonic_mean(&Record::bytes_per_second);
    const double row_bytes = static_cast<double>(row_list_bytes(1, width_));
    auto largest = [](Span<const float> rows) {
      return static_cast<double>(*std::ranges::max_element(rows));
    };

    PredictedSeconds seconds;
    seconds.push_pull = 2 * latency + (most(&Record::push_sent, &Record::push_received) +
                                       most(&Record::pull_sent, &Record::pull_received)) /
                                          rate;
    double rows = 0;
    std::size_t at = 0;
    int stages = 0;
    for (std::size_t groups = power_; groups > 1; at += groups, groups /= 2, ++stages) {
      rows += largest(group_rows_.subspan(at, groups));
    }
    if (world_ > power_) {  // fold in, fold out
      rows += largest(rank_rows_.subspan(power_, world_ - power_)) + static_cast<double>(group_rows_[at]);
      stages += 2;
    }
    seconds.centralization = stages * latency + rows * row_bytes / rate;
    return seconds;
  }

  Step& step_;
  std::size_t width_;
  std::size_t dense_bytes_;
  const std::size_t world_ = static_cast<std::size_t>(step_.communicator.size());
  const std::size_t self_ = static_cast<std::size_t>(step_.communicator.rank());
  const std::size_t power_ = largest_power_of_two(world_);
  /// |union| of every group of ranks that the recursive doubling merges, here as far as this rank owns it:
  /// the power_ groups of level 0 (a rank and the one folded into it), then half as many of level 1, ...
  Span<float> group_rows_;
  /// Rows that each rank holds; of this rank only, the others' entries are 0 until summed.
  Span<float> rank_rows_;
  std::size_t push_received_ = 0;  ///< Rows from other ranks.
};

// One value per parameter, the same for all of a bucket.
constexpr StateKind kProfiled = {.name = "zen_profiled"};
constexpr StateKind kPushPullSeconds = {.name = "zen_push_pull_seconds"};
constexpr StateKind kCentralizationSeconds = {.name = "zen_centralization_seconds"};
constexpr StateKind kSmallest = {.name = "zen_smallest"};

enum class Scheme { automatic, push_pull, centralization };
enum class Split { sort, hash, thresholds };

struct ZenConfig {
  Scheme scheme = Scheme::automatic;
  std::uint64_t profile_steps = 4;
  LinkModel link;
  PullFormat pull = PullFormat::smaller;
  Split split = Split::sort;
  HierarchicalHashParameters hashing;
  std::uint64_t every = 1000;  ///< Steps that thresholds last.
};

/// Centralization adds in another order than the dense sum does and its sums grow on fewer ranks: it has to
/// be clearly faster to be chosen.
constexpr float kClearlyFaster = 0.95f;

constexpr std::size_t kMostBlockBytes = 4096;

/// How many bits of an index may stay together. A block is one ball in W bins, so a rank's non-zeros have to
/// make at least 400 W ln W blocks even if they fill them, with which the imbalance stays below 1.1 (theorem
/// 2). `rows`: what the rank with fewest had in the last step. Beyond a page there is nothing more to share.
std::uint32_t block_bits_for(double rows, std::size_t world, std::size_t width) {
  const auto ranks = static_cast<double>(world);
  const double needed = 400 * ranks * std::log(ranks);
  std::uint32_t bits = 0;
  while ((width * sizeof(float) << (bits + 1)) <= kMostBlockBytes &&
         rows >= needed * static_cast<double>(2u << bits)) {
    ++bits;
  }
  return bits;
}

class Zen final : public SparseSynchronizer {
 public:
  explicit Zen(const ZenConfig& config) : config_(config) {}

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    if (e.world == 1) return 0;
    if (workload.reduce_scatter) return row_list_bytes(e.rows - e.rows / e.world, e.width);
    if (config_.scheme == Scheme::centralization) {
      return recursive_doubling_bytes(e.rows, e.union_rows, e.world,
                                      static_cast<std::uint64_t>(workload.rank), e.width);
    }
    const std::uint64_t owned = e.table_rows / e.world;
    const std::uint64_t result = e.union_rows / e.world;
    const std::uint64_t pull = pulls_bitmap(config_.pull, owned, result, e.width)
                                   ? row_bitmap_bytes(owned, result, e.width)
                                   : row_list_bytes(result, e.width);
    return row_list_bytes(e.rows - e.rows / e.world, e.width) + (e.world - 1) * pull;
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const BucketState& state) {
      const auto put = [&](const StateKind& kind, float value) {
        const std::vector<float> values(state.parameters, value);
        writer.values(kind, bucket, Span<const float>(values));
      };
      put(kProfiled, state.profiled);
      put(kPushPullSeconds, state.push_pull_seconds);
      put(kCentralizationSeconds, state.centralization_seconds);
      put(kSmallest, state.smallest);
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, BucketState> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      BucketState state;
      state.parameters = reader.parameters(bucket);
      std::vector<float> values(state.parameters);
      auto get = [&](const StateKind& kind, float& into) {
        if (values.empty() || !reader.values(kind, bucket, Span<float>(values))) return false;
        into = values.front();
        return true;
      };
      if (get(kProfiled, state.profiled) && get(kPushPullSeconds, state.push_pull_seconds) &&
          get(kCentralizationSeconds, state.centralization_seconds) && get(kSmallest, state.smallest)) {
        loaded[bucket] = state;
      }
    }
    states_.assign(std::move(loaded));
  }
  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    if (step.reduce_scatter) {
      step.report.scheme = "push_pull";
      return push_pull(bucket, own, finite, {.slots = IndexPermutation::none(own.rows)}, step);
    }
    BucketState& state = states_.open(bucket);
    state.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    if (!centralizes(state)) return through_owners(bucket, state, own, finite, step);
    step.report.scheme = "centralization";
    return recursive_doubling(bucket, own, finite, step);
  }

 private:
  /// Of one bucket, the same on all ranks. What is saved is kept in floats, as it is saved, so that a resumed
  /// run decides alike.
  struct BucketState {
    float profiled = 0;  ///< Steps so far, over which both schemes' predicted seconds are summed.
    float push_pull_seconds = 0;
    float centralization_seconds = 0;
    float smallest = 0;  ///< Rows of the rank that had fewest in the last push/pull step.
    std::size_t parameters = 1;
    // Of split=thresholds. Never saved: means do not depend on them.
    std::vector<std::uint32_t> thresholds;
    std::uint64_t steps_left = 0;  ///< That they still last.
  };

  /// Section 2.2: whichever scheme is faster.
  bool centralizes(const BucketState& state) const {
    if (config_.scheme != Scheme::automatic) return config_.scheme == Scheme::centralization;
    return !profiles(state) && state.centralization_seconds < kClearlyFaster * state.push_pull_seconds;
  }
  bool profiles(const BucketState& state) const {
    return config_.scheme == Scheme::automatic && state.profiled < static_cast<float>(config_.profile_steps);
  }

  /// Balanced Parallelism, section 3.1.
  RowMean through_owners(BucketId bucket, BucketState& state, const RowSparse& own, bool finite, Step& step) {
    step.report.scheme = "push_pull";
    const PushPullScheme scheme = scheme_of(bucket, state, own, step);
    PushPull exchange(bucket, own, finite, scheme, step);
    exchange.push();   // section 3.2: each non-zero to the owner that the hash gives it
    exchange.merge();  // the owner's sums
    std::optional<SchemeProfile> profile;
    if (profiles(state)) profile.emplace(exchange, own.width, own.elements() * sizeof(float), step);
    const RowMean mean = exchange.pull();  // section 3.3: the results as hash bitmaps
    if (profile) {
      const PredictedSeconds predicted = profile->predict(exchange, config_.link);
      if (mean.finite) {
        state.push_pull_seconds += static_cast<float>(predicted.push_pull);
        state.centralization_seconds += static_cast<float>(predicted.centralization);
        ++state.profiled;
      }
    }
    if (mean.finite) {
      state.smallest = static_cast<float>(exchange.smallest());
      renew_thresholds(state, mean);
    }
    return mean;
  }

  PushPullScheme scheme_of(BucketId bucket, BucketState& state, const RowSparse& own,
                           const Step& step) const {
    if (config_.split == Split::thresholds) {
      const auto world = static_cast<std::size_t>(step.communicator.size());
      for (std::size_t owner = state.thresholds.size() + 1; owner < world; ++owner) {
        state.thresholds.push_back(static_cast<std::uint32_t>(part_begin(own.rows, world, owner)));
      }
      return {
          .slots = IndexPermutation::none(own.rows), .pull = config_.pull, .thresholds = state.thresholds};
    }
    const RandomStream stream = random_stream(step.seed, step.index, bucket, RandomPurpose::ownership);
    const std::uint32_t block_bits = block_bits_for(
        static_cast<double>(state.smallest), static_cast<std::size_t>(step.communicator.size()), own.width);
    PushPullScheme scheme{.slots = IndexPermutation::make(own.rows, stream, block_bits),
                          .pull = config_.pull,
                          .hashing = config_.hashing};
    if (config_.split == Split::hash) {
      // Independent of pi's, which is of rank 0 and hop 0. Only the owner must be agreed.
      scheme.hash_split = random_stream(step.seed, step.index, bucket, RandomPurpose::ownership,
                                        static_cast<std::uint32_t>(step.communicator.rank()), 1);
    }
    return scheme;
  }

  /// At the end of a step whose mean is finite, and therefore the union of what all ranks had.
  void renew_thresholds(BucketState& state, const RowMean& mean) const {
    if (config_.split != Split::thresholds) return;
    if (state.steps_left > 0) --state.steps_left;
    if (state.steps_left > 0 || mean.rows.size() == 0) return;
    cut_evenly(mean.rows.row_indices, state.thresholds);
    state.steps_left = config_.every;
  }

  ZenConfig config_;
  BucketStates<BucketState> states_;
};

ZenConfig config_from(const Options& options) {
  ZenConfig config;
  const std::string scheme = options.choice("scheme", {"auto", "push_pull", "centralization"});
  config.scheme = scheme == "auto"        ? Scheme::automatic
                  : scheme == "push_pull" ? Scheme::push_pull
                                          : Scheme::centralization;
  config.profile_steps = static_cast<std::uint64_t>(options.integer("profile_steps", 1, 1000));
  config.link = {.latency_seconds = options.real("latency_us", 0, 1e9) * 1e-6,
                 .bytes_per_second = options.real("gbit", 0, 1e6) * 1e9 / 8};
  const std::string pull = options.choice("pull", {"auto", "bitmap", "list"});
  config.pull = pull == "auto"     ? PullFormat::smaller
                : pull == "bitmap" ? PullFormat::bitmap
                                   : PullFormat::list;
  const std::string split = options.choice("split", {"sort", "hash", "thresholds"});
  config.split = split == "sort" ? Split::sort : split == "hash" ? Split::hash : Split::thresholds;
  config.hashing = {.hashes = static_cast<int>(options.integer("hashes", 1, 64)),
                    .slots = options.real("slots", 0.01, 64),
                    .serial = options.real("serial", 0, 1)};
  config.every = static_cast<std::uint64_t>(options.integer("every", 1, 1'000'000'000));
  if (config.split != Split::sort && config.scheme == Scheme::centralization) {
    throw std::invalid_argument("zen: split=" + split +
                                " has no owners to split among under scheme=centralization");
  }
  if (config.split == Split::thresholds && config.scheme == Scheme::automatic) {
    throw std::invalid_argument(
        "zen: split=thresholds goes with scheme=push_pull: what scheme=auto would choose depends on "
        "thresholds, which no state has");
  }
  return config;
}

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
  info.turns_residual = true;
  info.takes_rows = true;
  info.state = {kProfiled, kPushPullSeconds, kCentralizationSeconds, kSmallest};
  info.undoes_steps = true;
  info.reduce_scatters = true;
  info.options = {
      {"scheme", "auto", "push_pull, centralization, or auto: the one that is predicted to be faster"},
      {"profile_steps", "4", "steps off which auto predicts, 1 to 1000"},
      {"gbit", "0", "what auto reckons with, in Gbit/s; 0: measure the link"},
      {"latency_us", "50", "what auto reckons with, in microseconds, unless it measures"},
      {"pull", "auto",
       "what owners send back: auto, the smaller of hash bitmap and list; bitmap, as the paper does; list"},
      {"split", "sort",
       "how rows are split among owners: sort, a counting sort; hash, the paper's Algorithm 1; "
       "thresholds, without a hash, by cuts of an earlier step's union, on the CPU"},
      {"hashes", "3", "split=hash: how many slots an index tries (the paper's k), 1 to 64"},
      {"slots", "2", "split=hash: slots of all owners, in non-zeros (r1), 0.01 to 64"},
      {"serial", "0.1",
       "split=hash: room for indices that found no slot, in slots (r2), 0 to 1; too little costs a second "
       "pass"},
      {"every", "1000", "split=thresholds: steps from one set of thresholds to the next"}};
  info.make = [](const Options& options, Inner) { return std::make_unique<Zen>(config_from(options)); };
  return info;
}

}  // namespace thinwire
