#include "apps/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "apps/train/agreement.h"
#include "thinwire/errors.h"
#include "thinwire/registry.h"

namespace thinwire::train {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "epoch-";
/// The one before the newest is what is left when the newest turns out to be damaged.
constexpr std::size_t kKeptCheckpoints = 2;

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

[[noreturn]] void not_written(const fs::path& path, int error) {
  throw std::runtime_error(fmt::format("{} cannot be written ({})", path.string(), std::strerror(error)));
}

/// Until the disk has it: a rename may reach the disk before what is renamed.
void flush_to_disk(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) not_written(path, errno);
  const int error = ::fsync(file) == 0 ? 0 : errno;
  ::close(file);
  // Some file systems cannot flush a folder.
  if (error != 0 && error != EINVAL) not_written(path, error);
}

void write_file(const fs::path& path, const StateWriter& state) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  if (!stream) not_written(path, errno);
  try {
    state.write(stream);
  } catch (const std::runtime_error&) {
    not_written(path, errno);
  }
  stream.close();
  if (!stream) not_written(path, errno);
  flush_to_disk(path);
}

/// A file that came to another place than it was written for would be taken for what it is not. Files of
/// before have no such entries.
void require_entry(const StateReader& state, const fs::path& path, const char* name, std::uint64_t expected) {
  if (!state.contains(name) || state.get_integer(name) == expected) return;
  throw std::runtime_error(fmt::format("checkpoint file {} is of {} {}, not {}: files were exchanged",
                                       path.string(), name, state.get_integer(name), expected));
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

/// Puts the whole checkpoint in its place, on rank 0.
void publish(const std::string& folder, const fs::path& partial, const fs::path& place, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (fs::exists(partial / rank_file(rank))) continue;
    throw std::runtime_error(fmt::format(
        "rank 0 does not see rank {}'s file in {}: --checkpoint needs a folder that all ranks share", rank,
        partial.string()));
  }
  flush_to_disk(partial);
  const fs::path replaced = place.string() + ".replaced";
  fs::remove_all(replaced);
  if (fs::exists(place)) fs::rename(place, replaced);
  fs::rename(partial, place);
  flush_to_disk(folder);
  std::error_code ignored;
  fs::remove_all(replaced, ignored);
}

void write_together(const std::string& folder, const fs::path& place, const fs::path& partial,
                    const StateWriter& shared, const StateWriter& mine, Communicator& communicator) {
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
    if (first) publish(folder, partial, place, communicator.size());
  });
}

void get(const StateReader& reader, const std::string& name, std::uint64_t& value) {
  value = reader.get_integer(name);
}
void get(const StateReader& reader, const std::string& name, double& value) {
  value = reader.get_real(name);
}

}  // namespace

std::vector<std::uint64_t> checkpoints(const std::string& folder) {
  std::vector<std::uint64_t> epochs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto epoch = epoch_of(entry.path())) epochs.push_back(*epoch);
  }
  std::sort(epochs.rbegin(), epochs.rend());
  return epochs;
}

std::uint64_t latest_checkpoint(const std::string& folder) {
  const std::vector<std::uint64_t> epochs = checkpoints(folder);
  return epochs.empty() ? 0 : epochs.front();
}

void write_checkpoint(const std::string& folder, std::uint64_t epoch, const StateWriter& shared,
                      const StateWriter& mine, Communicator& communicator) {
  const fs::path place = epoch_folder(folder, epoch);
  const fs::path partial = place.string() + ".partial";
  const bool first = communicator.rank() == 0;
  try {
    write_together(folder, place, partial, shared, mine, communicator);
  } catch (const CommError&) {
    throw;
  } catch (const std::runtime_error& error) {
    std::error_code ignored;
    if (first) fs::remove_all(partial, ignored);
    const std::uint64_t stands = latest_checkpoint(folder);
    throw std::runtime_error(fmt::format(
        "no checkpoint of epoch {}: {}; {}", epoch, error.what(),
        stands == 0 ? "there is none of before"
                    : fmt::format("that of epoch {} stands, and --resume goes on from it", stands)));
  }
  if (!first) return;
  const std::vector<std::uint64_t> all = checkpoints(folder);
  std::size_t kept = 0;
  for (const std::uint64_t old : all) {
    std::error_code ignored;
    if (old <= epoch && ++kept > kKeptCheckpoints) fs::remove_all(epoch_folder(folder, old), ignored);
  }
}

StateReader read_shared_state(const std::string& folder, std::uint64_t epoch) {
  const fs::path path = epoch_folder(folder, epoch) / kSharedFile;
  StateReader state = read_file(path);
  require_entry(state, path, "epoch", epoch);
  return state;
}

StateReader read_rank_state(const std::string& folder, std::uint64_t epoch, int rank) {
  const fs::path path = epoch_folder(folder, epoch) / rank_file(rank);
  StateReader state = read_file(path);
  require_entry(state, path, "epoch", epoch);
  require_entry(state, path, "rank", static_cast<std::uint64_t>(rank));
  return state;
}

Checkpoint read_newest_checkpoint(const std::string& folder, Communicator& communicator) {
  const std::uint64_t newest = latest_checkpoint(folder);
  for (const std::uint64_t others : gather(communicator, newest)) {
    if (others == newest && newest > 0) continue;
    throw std::runtime_error(fmt::format(
        "no checkpoint in {} that every rank can see: --checkpoint needs a folder that all ranks share",
        folder));
  }
  std::string failures;
  for (std::uint64_t epoch = newest; epoch > 0;) {
    std::optional<Checkpoint> found;
    std::string failure;
    try {
      found.emplace(Checkpoint{.epoch = epoch,
                               .shared = read_shared_state(folder, epoch),
                               .mine = read_rank_state(folder, epoch, communicator.rank()),
                               .passed_over = failures});
    } catch (const std::runtime_error& error) {
      failure = error.what();
    }
    const auto good = gather(communicator, std::uint64_t{found ? 1u : 0u});
    const auto bad = std::find(good.begin(), good.end(), 0u);
    if (bad == good.end()) return std::move(*found);
    if (failure.empty()) failure = fmt::format("rank {} cannot read epoch {}", bad - good.begin(), epoch);
    failures += (failures.empty() ? "" : "; ") + failure;
    // Every rank takes the same one next, whatever another sees of the folder meanwhile.
    std::uint64_t next = 0;
    for (const std::uint64_t older : checkpoints(folder)) {
      if (older < epoch) next = std::max(next, older);
    }
    epoch = gather(communicator, next)[0];
  }
  throw std::runtime_error(fmt::format("no whole checkpoint in {}: {}", folder, failures));
}

namespace {

/// A line of trajectory(), its spec as people write it.
std::string shown(const std::string& line) {
  const std::string_view spec = "spec=";
  if (!line.starts_with(spec)) return line;
  return std::string(spec) + builtin_registry().readable(line.substr(spec.size()));
}

}  // namespace

void require_same_trajectory(const std::string& saved, const std::string& asked, const std::string& folder) {
  std::istringstream saved_lines(saved);
  std::istringstream asked_lines(asked);
  std::string then;
  std::string now;
  while (std::getline(saved_lines, then) && std::getline(asked_lines, now)) {
    // An earlier version knew fewer options of a spec.
    if (then == now || shown(then) == shown(now)) continue;
    throw std::runtime_error(fmt::format(
        "the checkpoint in {} was made with {}, not {}: resume with the same options, or choose another "
        "--checkpoint folder",
        folder, shown(then), shown(now)));
  }
}

void put_history(StateWriter& writer, const std::vector<EpochResult>& epochs) {
  writer.put("history", std::uint64_t{epochs.size()});
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    EpochResult::for_each_member([&](const char* name, auto member) {
      writer.put(fmt::format("history/{}/{}", i, name), epochs[i].*member);
    });
  }
}

std::vector<EpochResult> get_history(const StateReader& reader) {
  std::vector<EpochResult> epochs;
  for (std::uint64_t i = 0; i < reader.get_integer("history"); ++i) {
    EpochResult& epoch = epochs.emplace_back();
    EpochResult::for_each_member([&](const char* name, auto member) {
      get(reader, fmt::format("history/{}/{}", i, name), epoch.*member);
    });
  }
  return epochs;
}

void put_costs(StateWriter& writer, const Costs& costs) {
  Costs::for_each_member(
      [&](const char* name, auto member) { writer.put(fmt::format("costs/{}", name), costs.*member); });
}

Costs get_costs(const StateReader& reader) {
  Costs costs;
  Costs::for_each_member([&](const char* name, auto member) {
    const std::string entry = fmt::format("costs/{}", name);
    if (reader.contains(entry)) get(reader, entry, costs.*member);  // earlier versions had fewer
  });
  return costs;
}

}  // namespace thinwire::train
