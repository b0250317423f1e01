#include "apps/train/recorder.h"

#include <fmt/format.h>

#include <filesystem>

namespace thinwire::train {

Recorder::Recorder(const std::string& folder, int steps, int every, const Communicator& communicator)
    : left_(steps), every_(static_cast<std::uint64_t>(every)) {
  if (steps == 0) return;
  const std::string file = file_name(communicator.rank());
  writer_ = std::make_unique<apps::GradientFileWriter>((std::filesystem::path(folder) / file).string(),
                                                       communicator.rank(), communicator.size());
}

void Recorder::step(const Gradients& gradients, std::uint64_t step) {
  if (left_ == 0 || step % every_ != 0) return;
  writer_->append(gradients.record(step));
  if (--left_ == 0) writer_.reset();
}

std::string Recorder::file_name(int rank) {
  return fmt::format("gradients-rank-{}.twg", rank);
}

}  // namespace thinwire::train
