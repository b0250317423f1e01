// Transform coding: each matrix is turned into the directions in which it varies most, on both of its sides,
// and what is found along them travels as whole numbers of steps in an entropy code, as in `ecsq`. A gradient
// lies near few directions. So most of what travels is near zero, which takes few bits, and what does not lie
// there is sent all the same.
//
//   p, rows --directions--> --over each row's length--> groups of rows --directions--> coefficients
//   coefficients --levels--> owner: mean --levels--> all
//   mean, residual <--the same, backwards-- what was said
//   mean --> lengths of rows, and directions of the next steps, the same on all ranks
//
// Sources: K. Karhunen, 1947, and M. Loeve, 1948: the transform, which no other one of orthonormal directions
// beats for values of a normal distribution (Goyal, "Theoretical foundations of transform coding", IEEE
// Signal Processing Magazine, 2001); a separable one, along both sides, as images have it (A. K. Jain, 1976).
// That rows of gradients lie near few directions: Vogels et al., PowerSGD, NeurIPS 2019. That directions on
// both sides come from running means of G^T G and G G^T, and last for many steps: N. Vyas et al., SOAP, 2024,
// of V. Gupta et al., Shampoo, ICML 2018. The code: exchange/level_average.h.
//
// A row is one of the longer side of a matrix. The shorter side is cut into tiles, each as wide as a power of
// two, at most 128, and a tile's rows into groups of as many. Groups of a table have lengths and no
// directions (kMostRowsPerColumn). Parameters whose leading dimension is not known, and vectors, have no
// directions. Each tile, and each such parameter, begins a block of 128 coefficients.
//
// Steps are multiples of a root mean square: of a group's coefficients, which share one; in a table's group,
// of the mean of its blocks'; and of a block's elsewhere, which is a row where tiles are 128 wide. Adam makes
// the small rows of a matrix as large as the others, so they must not wait longer. So the rows of a group are
// divided by their lengths: a running root mean square of what the mean had there. A row that is small for
// once so takes few bits.
//
// Levels travel in an order in which those of about one size are neighbours: in a group, of coefficient k of
// row i, by (i + 1) (k + 1), since directions are sorted; elsewhere by direction (LevelSquare::columns,
// LevelRules::by_place).
//
// Directions begin as the axes. They are turned after a tile's steps 1, 2, 4, ... and after every `every`th,
// by one pass over all pairs: those are turned whose running products are not small beside the directions'
// own. What a pass leaves the next one goes on with. Every rank finds them from the same means, with the same
// bits, so nothing travels for them. What all have learned has a digest, which frames carry: where a rank has
// learned something else, its frames are refused.
//
// Bytes per rank: those of its frames, which depend on the data. payload_bytes() gives what coefficients of a
// normal distribution take: more than gradients' do.

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/klt_step.h"
#include "core/bucket_vectors.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr StateKind kLearned = {.name = "klt_directions"};

class Klt final : public Synchronizer {
 public:
  explicit Klt(const KltRules& rules) : rules_(rules), bits_(normal_level_bits(rules.levels)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    KltStep(rules_, bucket, gradient, residual, step, states_.open(bucket)).run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1) return 0;
    const TileCut<Workload> cut(workload, workload.elements);
    return level_average_bytes(cut.coefficients(), static_cast<std::size_t>(workload.world_size),
                               static_cast<std::size_t>(workload.rank), rules_.levels, bits_);
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const KltState& state) {
      if (!state.learned) return;
      const auto all = Span<const float>(*state.learned);
      std::size_t begin = 0;
      for (const auto& [parameter, end] : *state.ends) {
        writer.array(kLearned, bucket, parameter, all.subspan(begin, end - begin));
        begin = end;
      }
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, KltState> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      const SavedParameters parameters(reader, bucket);
      const TileCut<SavedParameters> cut(parameters, reader.bucket_elements(bucket));
      const auto ends = ends_of(cut);
      // A parameter that has none was of a bucket without steps: it begins with the axes.
      std::vector<float> learned = nothing_learned(cut);
      bool found = false;
      std::size_t begin = 0;
      for (const auto& [parameter, end] : ends) {
        const auto part = Span<float>(learned).subspan(begin, end - begin);
        found = reader.array(kLearned, bucket, parameter, part) || found;
        begin = end;
      }
      if (!found) continue;
      const std::string wrong = wrong_in(cut, learned);
      if (!wrong.empty()) {
        throw std::runtime_error("the state's directions of bucket " + std::to_string(bucket) + ": " + wrong);
      }
      loaded[bucket] = {std::make_shared<std::vector<float>>(std::move(learned)),
                        std::make_shared<std::vector<SharedFloats>>(),
                        std::make_shared<std::map<std::size_t, std::size_t>>(ends)};
    }
    states_.assign(std::move(loaded));
  }

  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  bool keeps_little(BucketId) const override { return true; }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 private:
  KltRules rules_;
  double bits_;
  BucketStates<KltState> states_;
};

}  // namespace

SystemInfo klt_info() {
  SystemInfo info;
  info.name = "klt";
  info.summary = "matrices along their main directions, then whole numbers of steps in an entropy code";
  info.paper = "Karhunen, 1947; Goyal, 2001; src/baselines/klt.cc";
  info.formula =
      "at most what ecsq sends of normal values with as large a step, each parameter filled up to whole "
      "blocks of 128";
  info.feedback_default = true;
  info.state = {kLearned};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {{"step", "0.3", "between levels, in units of the root mean square of a row, 0.05 to 16"},
                  {"every", "8", "steps from one turn of the directions to the next, 1 to 1000000"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    KltRules rules;
    rules.levels.step = options.real("step", 0.05, 16);
    rules.levels.by_place = true;
    rules.every = static_cast<std::uint64_t>(options.integer("every", 1, 1'000'000));
    return std::make_unique<Klt>(rules);
  };
  return info;
}

}  // namespace thinwire
