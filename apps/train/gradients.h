#pragma once
// All gradients of one replica: the dense ones in buckets (buckets.h), those of embeddings as the
// rows that backward() lists, one bucket per table. One call synchronizes the whole model, in an
// order that is the same on all ranks: dense buckets from the last layers to the first, then the
// tables, whose gradients are ready last.

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "apps/gradients/gradient_file.h"
#include "apps/train/buckets.h"
#include "apps/train/models/models.h"
#include "thinwire/session.h"

namespace thinwire::train {

class Gradients {
 public:
  /// Declares everything to the session. The parameters are float32 on the CPU.
  /// `model` and `session` outlive this.
  Gradients(const Model& model, Session& session, std::size_t bucket_bytes);

  /// What an optimizer of dense gradients steps; the tables are not among them.
  const std::vector<torch::Tensor>& dense_parameters() const { return dense_parameters_; }

  /// Before each backward().
  void clear();

  /// After backward(): replaces this rank's gradients by their mean. A table that this rank's batch did not
  /// touch has no rows. Collective.
  void synchronize();

  /// What all buckets' last step cost, bucket after bucket.
  std::size_t buckets() const { return dense_.count() + tables_.size(); }
  const StepReport& report(std::size_t bucket) const;
  bool row_sparse(std::size_t bucket) const { return bucket >= dense_.count(); }

  /// After synchronize(): where the norm of the mean, over all buckets, is above `most`, multiplies the dense
  /// buckets by what brings it there. Returns that factor, 1 where nothing was changed: the rows' learning
  /// rate is to be multiplied by it.
  double clip(double most);

  /// After synchronize(): plain SGD on the rows of the mean, which touches no other. Momentum and weight
  /// decay would either touch all rows or need to know when each was last touched; the tables go without.
  void apply_rows(double learning_rate);

  /// After backward() and before synchronize(): this rank's gradients by
  /// parameter, in the order of the buckets.
  apps::RecordedStep record(std::uint64_t step) const;

 private:
  struct Table {
    std::string name;
    torch::Tensor weight;  // [rows, width]
    BucketId bucket = 0;
    torch::Tensor values;  // of the gradient: keeps torch's memory alive
    std::vector<std::uint32_t> indices;
    RowSparse mean;

    std::size_t rows() const { return static_cast<std::size_t>(weight.size(0)); }
    std::size_t width() const { return static_cast<std::size_t>(weight.size(1)); }
    /// Takes over what backward() left in the weight's grad.
    RowSparse take_gradient();
  };
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;
  static Named dense_of(const Model& model);

  Session& session_;
  Named dense_named_;
  std::vector<torch::Tensor> dense_parameters_;
  GradientBuckets dense_;
  std::vector<Table> tables_;
  std::vector<BucketGradient> call_;
};

}  // namespace thinwire::train
