#include "apps/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "apps/train/agreement.h"

namespace thinwire::train {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "epoch-";

fs::path epoch_folder(const std::string& folder, std::uint64_t epoch) {
  return fs::path(folder) / fmt::format("{}{}", kPrefix, epoch);
}

std::string rank_file(int rank) {
  return fmt::format("rank-{}.state", rank);
}
constexpr const char* kSharedFile = "shared.state";

/// The epoch of a folder called epoch-N.
std::optional<std::uint64_t> epoch_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t epoch = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, epoch);
  if (error != std::errc() || stop != end || epoch == 0) return std::nullopt;
  return epoch;
}

void write_file(const fs::path& path, const StateWriter& state) {
  {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    if (!stream) throw std::runtime_error(fmt::format("{} cannot be written", path.string()));
    state.write(stream);
    stream.close();
    if (!stream)
      throw std::runtime_error(fmt::format("{} cannot be written: is the disk full?", path.string()));
  }
  // A rename may reach the disk before the bytes do unless they are asked to go first.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    ::fsync(file);
    ::close(file);
  }
}

StateReader read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error(fmt::format("checkpoint file {} is missing", path.string()));
  try {
    return StateReader(stream);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("checkpoint file {}: {}", path.string(), error.what()));
  }
}

/// Runs `action` on this rank and throws on all ranks if it failed on one.
template <class Action>
void together(Communicator& communicator, Action action) {
  std::string failure;
  try {
    action();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::vector<std::uint64_t> failed = gather(communicator, std::uint64_t{failure.empty() ? 0u : 1u});
  for (std::size_t rank = 0; rank < failed.size(); ++rank) {
    if (failed[rank] == 0) continue;
    throw std::runtime_error(failure.empty() ? fmt::format("rank {} could not write its checkpoint", rank)
                                             : failure);
  }
}

}  // namespace

std::uint64_t latest_checkpoint(const std::string& folder) {
  std::uint64_t latest = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    latest = std::max(latest, epoch_of(entry.path()).value_or(0));
  }
  return latest;
}

void write_checkpoint(const std::string& folder, std::uint64_t epoch, const StateWriter& shared,
                      const StateWriter& mine, Communicator& communicator) {
  const fs::path place = epoch_folder(folder, epoch);
  const fs::path partial = place.string() + ".partial";
  const bool first = communicator.rank() == 0;
  together(communicator, [&] {
    if (!first) return;
    fs::remove_all(partial);
    fs::create_directories(partial);
  });
  together(communicator, [&] {
    if (first) write_file(partial / kSharedFile, shared);
    write_file(partial / rank_file(communicator.rank()), mine);
  });
  together(communicator, [&] {
    if (!first) return;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (fs::exists(partial / rank_file(rank))) continue;
      throw std::runtime_error(fmt::format(
          "rank 0 does not see rank {}'s file in {}: --checkpoint needs a folder that all ranks share", rank,
          partial.string()));
    }
    fs::remove_all(place);
    fs::rename(partial, place);
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (epoch_of(entry.path()).value_or(epoch) < epoch) fs::remove_all(entry.path());
    }
  });
}

StateReader read_shared_state(const std::string& folder, std::uint64_t epoch) {
  return read_file(epoch_folder(folder, epoch) / kSharedFile);
}

StateReader read_rank_state(const std::string& folder, std::uint64_t epoch, int rank) {
  return read_file(epoch_folder(folder, epoch) / rank_file(rank));
}

void require_same_trajectory(const std::string& saved, const std::string& asked, const std::string& folder) {
  std::istringstream saved_lines(saved);
  std::istringstream asked_lines(asked);
  std::string then;
  std::string now;
  while (std::getline(saved_lines, then) && std::getline(asked_lines, now)) {
    if (then == now) continue;
    throw std::runtime_error(fmt::format(
        "the checkpoint in {} was made with {}, not {}: resume with the same options, or choose another "
        "--checkpoint folder",
        folder, then, now));
  }
}

void put_history(StateWriter& writer, const std::vector<EpochResult>& epochs) {
  writer.put("history", std::uint64_t{epochs.size()});
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    const std::string name = fmt::format("history/{}/", i);
    writer.put(name + "epoch", epochs[i].epoch);
    writer.put(name + "steps", epochs[i].steps);
    writer.put(name + "loss", epochs[i].loss);
    writer.put(name + "test_accuracy", epochs[i].test_accuracy);
    writer.put(name + "test_loss", epochs[i].test_loss);
    writer.put(name + "perplexity", epochs[i].perplexity);
    writer.put(name + "seconds", epochs[i].seconds);
    writer.put(name + "seconds_step_median", epochs[i].seconds_step_median);
    writer.put(name + "wire_bytes", epochs[i].wire_bytes);
    writer.put(name + "wire_bytes_rows", epochs[i].wire_bytes_rows);
    writer.put(name + "wire_bytes_dense", epochs[i].wire_bytes_dense);
    writer.put(name + "wire_bytes_so_far", epochs[i].wire_bytes_so_far);
  }
}

std::vector<EpochResult> get_history(const StateReader& reader) {
  std::vector<EpochResult> epochs;
  for (std::uint64_t i = 0; i < reader.get_integer("history"); ++i) {
    const std::string name = fmt::format("history/{}/", i);
    epochs.push_back({.epoch = reader.get_integer(name + "epoch"),
                      .steps = reader.get_integer(name + "steps"),
                      .loss = reader.get_real(name + "loss"),
                      .test_accuracy = reader.get_real(name + "test_accuracy"),
                      .test_loss = reader.get_real(name + "test_loss"),
                      .perplexity = reader.get_real(name + "perplexity"),
                      .seconds = reader.get_real(name + "seconds"),
                      .seconds_step_median = reader.get_real(name + "seconds_step_median"),
                      .wire_bytes = reader.get_real(name + "wire_bytes"),
                      .wire_bytes_rows = reader.get_real(name + "wire_bytes_rows"),
                      .wire_bytes_dense = reader.get_real(name + "wire_bytes_dense"),
                      .wire_bytes_so_far = reader.get_integer(name + "wire_bytes_so_far")});
  }
  return epochs;
}

void put_costs(StateWriter& writer, const Costs& costs) {
  writer.put("costs/steps", costs.steps);
  writer.put("costs/bytes_sent", costs.bytes_sent);
  writer.put("costs/bytes_received", costs.bytes_received);
  writer.put("costs/messages_sent", costs.messages_sent);
  writer.put("costs/formula_bytes", costs.formula_bytes);
  writer.put("costs/bytes_sent_rows", costs.bytes_sent_rows);
  writer.put("costs/row_elements", costs.row_elements);
  writer.put("costs/row_elements_in", costs.row_elements_in);
  writer.put("costs/row_elements_out", costs.row_elements_out);
  writer.put("costs/seconds_compress", costs.seconds_compress);
  writer.put("costs/seconds_communicate", costs.seconds_communicate);
  writer.put("costs/seconds_decompress", costs.seconds_decompress);
}

Costs get_costs(const StateReader& reader) {
  return {.steps = reader.get_integer("costs/steps"),
          .bytes_sent = reader.get_integer("costs/bytes_sent"),
          .bytes_received = reader.get_integer("costs/bytes_received"),
          .messages_sent = reader.get_integer("costs/messages_sent"),
          .formula_bytes = reader.get_integer("costs/formula_bytes"),
          .bytes_sent_rows = reader.get_integer("costs/bytes_sent_rows"),
          .seconds_compress = reader.get_real("costs/seconds_compress"),
          .seconds_communicate = reader.get_real("costs/seconds_communicate"),
          .seconds_decompress = reader.get_real("costs/seconds_decompress"),
          .row_elements = reader.get_real("costs/row_elements"),
          .row_elements_in = reader.get_real("costs/row_elements_in"),
          .row_elements_out = reader.get_real("costs/row_elements_out")};
}

}  // namespace thinwire::train
