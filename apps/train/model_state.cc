#include "apps/train/model_state.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include <sstream>
#include <stdexcept>

namespace thinwire::train {

namespace {

/// The float32 tensors and 64-bit counters that models are made of.
template <class OnFloats, class OnCounter>
void visit(const Model& model, OnFloats on_floats, OnCounter on_counter) {
  const auto visit_one = [&](const std::string& name, const torch::Tensor& tensor) {
    if (tensor.scalar_type() == torch::kInt64 && tensor.numel() == 1) {
      on_counter(name, *tensor.data_ptr<std::int64_t>());
    } else {
      on_floats(name, Span<float>(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())));
    }
  };
  for (const auto& item : model.named_parameters()) visit_one("model/" + item.key(), item.value());
  for (const auto& item : model.named_buffers()) visit_one("model/" + item.key(), item.value());
}

}  // namespace

void put_model(StateWriter& writer, const Model& model) {
  visit(
      model,
      [&](const std::string& name, Span<float> values) { writer.put(name, Span<const float>(values)); },
      [&](const std::string& name, std::int64_t& value) {
        writer.put(name, static_cast<std::uint64_t>(value));
      });
}

void get_model(const StateReader& reader, Model& model) {
  visit(
      model, [&](const std::string& name, Span<float> values) { reader.get(name, values); },
      [&](const std::string& name, std::int64_t& value) {
        value = static_cast<std::int64_t>(reader.get_integer(name));
      });
}

void put_optimizer(StateWriter& writer, const torch::optim::Optimizer& optimizer) {
  // Torch's own archive, so that nothing here depends on how a release of torch keys its optimizers' state.
  std::ostringstream archive;
  torch::save(optimizer, archive);
  writer.put("optimizer", std::string_view(archive.str()));
}

void get_optimizer(const StateReader& reader, torch::optim::Optimizer& optimizer) {
  std::istringstream archive(reader.get_text("optimizer"));
  try {
    torch::load(optimizer, archive);
  } catch (const c10::Error& error) {
    throw std::runtime_error(
        fmt::format("the checkpoint's optimizer does not load: {}", error.what_without_backtrace()));
  }
}

}  // namespace thinwire::train
