#include "apps/gradients/recorded.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace thinwire::apps {
namespace {

void require_same_run(const GradientFile& file, const GradientFile& first, const std::string& path,
                      const std::string& first_path) {
  const auto same_tensors = [](const RecordedStep& a, const RecordedStep& b) {
    return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                      [](const RecordedTensor& x, const RecordedTensor& y) {
                        return x.name == y.name && x.row_sparse == y.row_sparse && x.rows == y.rows &&
                               x.width == y.width;
                      });
  };
  if (file.steps.size() != first.steps.size()) {
    throw std::runtime_error(fmt::format("{} holds {} steps, {} {}: record all ranks in one run", path,
                                         file.steps.size(), first_path, first.steps.size()));
  }
  for (std::size_t i = 0; i < file.steps.size(); ++i) {
    if (file.steps[i].step != first.steps[i].step || !same_tensors(file.steps[i], first.steps[i])) {
      throw std::runtime_error(fmt::format(
          "{} and {} hold other steps or tensors: record all ranks in one run", path, first_path));
    }
  }
}

}  // namespace

RecordedSource::RecordedSource(const std::vector<std::string>& paths, std::size_t bucket_bytes) {
  std::vector<std::optional<GradientFile>> by_rank(paths.size());
  std::string first_path;
  for (const auto& path : paths) {
    GradientFile file = read_gradient_file(path);
    if (file.world_size != static_cast<int>(paths.size())) {
      throw std::runtime_error(
          fmt::format("{} is of rank {} of {}, but {} files were given: give one per rank", path, file.rank,
                      file.world_size, paths.size()));
    }
    auto& place = by_rank[static_cast<std::size_t>(file.rank)];
    if (place) throw std::runtime_error(fmt::format("{}: rank {} is there twice", path, file.rank));
    place = std::move(file);
  }
  for (std::size_t rank = 0; rank < paths.size(); ++rank) files_.push_back(std::move(*by_rank[rank]));
  if (files_.empty() || steps() == 0) throw std::runtime_error("the gradient files hold no step");
  for (std::size_t rank = 1; rank < files_.size(); ++rank) {
    require_same_run(files_[rank], files_[0], fmt::format("rank {}'s file", rank), "rank 0's");
  }

  const auto& tensors = files_[0].steps[0].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const RecordedTensor& tensor = tensors[i];
    constexpr std::size_t kMostElements = 0xFFFFFFFF;
    if (tensor.rows > kMostElements / std::max<std::size_t>(1, tensor.width)) {
      throw std::runtime_error(
          fmt::format("{} has {} rows of width {}: tables of 2^32 elements or more cannot be replayed",
                      tensor.name, tensor.rows, tensor.width));
    }
    const std::size_t elements = tensor.rows * tensor.width;
    const bool joins = !tensor.row_sparse && !buckets_.empty() && !buckets_.back().row_sparse &&
                       (buckets_.back().rows + elements) * sizeof(float) <= bucket_bytes;
    if (!joins) {
      buckets_.push_back({.parameters = {}, .row_sparse = tensor.row_sparse, .width = tensor.width});
      tensors_.emplace_back();
    }
    buckets_.back().parameters.push_back({tensor.name, elements});
    buckets_.back().rows += tensor.rows;
    tensors_.back().push_back(i);
  }
  if (buckets_.empty()) throw std::runtime_error("the gradient files hold no tensor");
}

void RecordedSource::dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const {
  auto* target = gradient.begin();
  for (const std::size_t tensor : tensors_[bucket]) {
    const auto& values = recorded(rank, step).tensors[tensor].values;
    target = std::copy(values.begin(), values.end(), target);
  }
}

RowSparse RecordedSource::rows(int rank, std::uint64_t step, std::size_t bucket, RowBuffer&) const {
  const RecordedTensor& tensor = recorded(rank, step).tensors[tensors_[bucket][0]];
  return {.row_indices = tensor.indices, .values = tensor.values, .rows = tensor.rows, .width = tensor.width};
}

}  // namespace thinwire::apps
