#include "apps/gradients/gradient_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <istream>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "core/hashes.h"

namespace thinwire::apps {

namespace {

constexpr std::string_view kMagic = "TWGRADS1";
constexpr std::uint32_t kDense = 0;
constexpr std::uint32_t kRows = 1;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();  // rows; and values of one row
constexpr std::uint32_t kLongestName = 4096;

/// What is wrong with a tensor, if anything; the same for writing and reading.
std::optional<std::string> fault_of(const RecordedTensor& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kLongestName) {
    return fmt::format("has a name of {} bytes, not 1 to {}", tensor.name.size(), kLongestName);
  }
  if (tensor.rows > kMost) return fmt::format("has {} rows, 2^32 or more", tensor.rows);
  if (tensor.width == 0 || tensor.width > kMost) {
    return fmt::format("has the width {}, not 1 to 2^32 - 1", tensor.width);
  }
  if (!tensor.row_sparse) {
    if (tensor.width != 1) return fmt::format("is dense and has the width {}, not 1", tensor.width);
    if (!tensor.indices.empty()) return fmt::format("is dense and has {} indices", tensor.indices.size());
    if (tensor.values.size() != tensor.rows) {
      return fmt::format("has {} values for {} elements", tensor.values.size(), tensor.rows);
    }
    return std::nullopt;
  }
  if (tensor.values.size() % tensor.width != 0 ||
      tensor.values.size() / tensor.width != tensor.indices.size()) {
    return fmt::format("has {} values for {} rows of width {}", tensor.values.size(), tensor.indices.size(),
                       tensor.width);
  }
  const auto bad = std::find_if(tensor.indices.begin(), tensor.indices.end(),
                                [&](std::uint32_t index) { return index >= tensor.rows; });
  if (bad == tensor.indices.end()) return std::nullopt;
  return fmt::format("has the index {} at position {}, outside its {} rows", *bad,
                     bad - tensor.indices.begin(), tensor.rows);
}

/// How a step differs from the one before it in what all steps of a file share.
std::optional<std::string> fault_of(const RecordedStep& step, const RecordedStep& before) {
  if (step.step <= before.step) {
    return fmt::format("step {} comes after step {}: steps ascend", step.step, before.step);
  }
  if (step.tensors.size() != before.tensors.size()) {
    return fmt::format("step {} has {} tensors, step {} has {}", step.step, step.tensors.size(), before.step,
                       before.tensors.size());
  }
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    const RecordedTensor& now = step.tensors[i];
    const RecordedTensor& then = before.tensors[i];
    if (now.name == then.name && now.row_sparse == then.row_sparse && now.rows == then.rows &&
        now.width == then.width) {
      continue;
    }
    return fmt::format("tensor {} of step {} ('{}', {} x {}) is not that of step {} ('{}', {} x {})", i,
                       step.step, now.name, now.rows, now.width, before.step, then.name, then.rows,
                       then.width);
  }
  return std::nullopt;
}

std::optional<std::string> repeated_name(const RecordedStep& step) {
  std::set<std::string_view> names;
  for (const auto& tensor : step.tensors) {
    if (!names.insert(tensor.name).second) {
      return fmt::format("step {} has two tensors called '{}'", step.step, tensor.name);
    }
  }
  return std::nullopt;
}

/// What the next step is compared with, without the bulk.
RecordedStep outline(const RecordedStep& step) {
  RecordedStep shape{.step = step.step, .tensors = {}};
  for (const auto& tensor : step.tensors) {
    shape.tensors.push_back({tensor.name, tensor.row_sparse, tensor.rows, tensor.width, {}, {}});
  }
  return shape;
}

class Reader {
 public:
  Reader(std::istream& stream, const std::string& name) : stream_(stream), name_(name) {
    stream_.seekg(0, std::ios::end);
    const auto end = stream_.tellg();
    stream_.seekg(0);
    if (!stream_ || end < 0) refuse("it cannot be read");
    left_ = static_cast<std::uint64_t>(end);
  }

  GradientFile read() {
    std::string magic(kMagic.size(), '\0');
    take(magic.data(), magic.size(), "the magic");
    if (magic != kMagic) refuse(fmt::format("it does not begin with {}", kMagic));
    const auto rank = number<std::uint32_t>("the rank");
    const auto world = number<std::uint32_t>("the world size");
    if (world > static_cast<std::uint32_t>(std::numeric_limits<int>::max()) || rank >= world) {
      refuse(fmt::format("rank {} of {} cannot be", rank, world));
    }
    GradientFile file{.rank = static_cast<int>(rank), .world_size = static_cast<int>(world), .steps = {}};
    while (left_ > 0) {
      file.steps.push_back(read_step());
      const std::size_t count = file.steps.size();
      const auto fault =
          count == 1 ? repeated_name(file.steps[0]) : fault_of(file.steps[count - 1], file.steps[count - 2]);
      if (fault) refuse(*fault);
    }
    return file;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error(fmt::format("gradient file {}: {}", name_, what));
  }

  void need(std::uint64_t bytes, std::string_view what) const {
    if (bytes > left_) {
      refuse(fmt::format("it ends inside {}: {} bytes are left of {}", what, left_, bytes));
    }
  }

  void take(void* into, std::size_t bytes, std::string_view what) {
    need(bytes, what);
    if (!stream_.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes))) {
      refuse(fmt::format("it cannot be read inside {}", what));
    }
    left_ -= bytes;
    hash_.add(into, bytes);
  }

  template <class T>
  T number(std::string_view what) {
    T value{};
    take(&value, sizeof value, what);
    return value;
  }

  RecordedStep read_step() {
    hash_ = {};
    RecordedStep step;
    step.step = number<std::uint64_t>("a step's number");
    const auto tensors = number<std::uint32_t>("a number of tensors");
    for (std::uint32_t i = 0; i < tensors; ++i) {
      step.tensors.push_back(read_tensor(fmt::format("tensor {} of step {}", i, step.step)));
    }
    const std::uint64_t hash = hash_.value();
    if (number<std::uint64_t>(fmt::format("the hash of step {}", step.step)) != hash) {
      refuse(fmt::format("the hash of step {} does not match its bytes", step.step));
    }
    return step;
  }

  RecordedTensor read_tensor(const std::string& where) {
    const auto length = number<std::uint32_t>("the name length of " + where);
    if (length == 0 || length > kLongestName) {
      refuse(fmt::format("{} has a name of {} bytes, not 1 to {}", where, length, kLongestName));
    }
    RecordedTensor tensor;
    need(length, "the name of " + where);
    tensor.name.resize(length);
    take(tensor.name.data(), length, "the name of " + where);
    const auto kind = number<std::uint32_t>("the kind of " + where);
    if (kind != kDense && kind != kRows) {
      refuse(fmt::format("{} has the kind {}, neither 0 (dense) nor 1 (rows)", where, kind));
    }
    tensor.row_sparse = kind == kRows;
    tensor.rows = number<std::uint64_t>("the rows of " + where);
    tensor.width = number<std::uint64_t>("the width of " + where);
    const auto count = number<std::uint64_t>("the count of " + where);
    if (tensor.width == 0 || tensor.width > kMost) {
      refuse(fmt::format("{} has the width {}, not 1 to 2^32 - 1", where, tensor.width));
    }
    if (count > kMost) refuse(fmt::format("{} has the count {}, 2^32 or more", where, count));
    // Both factors are below 2^32, so that even with the indices nothing wraps.
    const std::uint64_t words = count * tensor.width + (tensor.row_sparse ? count : 0);
    if (words > left_ / 4) {
      refuse(fmt::format("it ends inside {}: {} bytes are left of {} rows of width {}", where, left_, count,
                         tensor.width));
    }
    if (tensor.row_sparse) {
      tensor.indices.resize(count);
      take(tensor.indices.data(), count * 4, "the indices of " + where);
    }
    tensor.values.resize(count * tensor.width);
    take(tensor.values.data(), tensor.values.size() * 4, "the values of " + where);
    if (const auto fault = fault_of(tensor)) refuse(fmt::format("{} {}", where, *fault));
    return tensor;
  }

  std::istream& stream_;
  const std::string& name_;
  std::uint64_t left_ = 0;
  Fnv1a hash_;
};

}  // namespace

GradientFile read_gradients(std::istream& stream, const std::string& name) {
  return Reader(stream, name).read();
}

GradientFile read_gradient_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw std::runtime_error(
        fmt::format("gradient file {} cannot be opened: `thinwire train --record N` writes them", path));
  }
  return read_gradients(stream, path);
}

GradientFileWriter::GradientFileWriter(std::string path, int rank, int world_size)
    : path_(std::move(path)), stream_(path_, std::ios::binary | std::ios::trunc) {
  if (rank < 0 || rank >= world_size) {
    throw std::invalid_argument(fmt::format("gradient file {}: no rank {} of {}", path_, rank, world_size));
  }
  const std::uint32_t numbers[] = {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(world_size)};
  stream_.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
  stream_.write(reinterpret_cast<const char*>(numbers), sizeof numbers);
  stream_.flush();
  if (!stream_) {
    throw std::runtime_error(
        fmt::format("gradient file {} cannot be written: check the folder and its permissions", path_));
  }
}

void GradientFileWriter::append(const RecordedStep& step) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(fmt::format("gradient file {}: {}", path_, what));
  };
  for (const auto& tensor : step.tensors) {
    if (const auto fault = fault_of(tensor)) refuse(fmt::format("tensor '{}' {}", tensor.name, *fault));
  }
  if (const auto fault = any_ ? fault_of(step, last_) : repeated_name(step)) refuse(*fault);
  Fnv1a hash;
  const auto put = [&](const void* data, std::size_t bytes) {
    stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    hash.add(data, bytes);
  };
  const auto put_number = [&](auto number) { put(&number, sizeof number); };
  put_number(std::uint64_t{step.step});
  put_number(static_cast<std::uint32_t>(step.tensors.size()));
  for (const auto& tensor : step.tensors) {
    put_number(static_cast<std::uint32_t>(tensor.name.size()));
    put(tensor.name.data(), tensor.name.size());
    put_number(tensor.row_sparse ? kRows : kDense);
    put_number(std::uint64_t{tensor.rows});
    put_number(std::uint64_t{tensor.width});
    put_number(std::uint64_t{tensor.row_sparse ? tensor.indices.size() : tensor.values.size()});
    put(tensor.indices.data(), tensor.indices.size() * sizeof(std::uint32_t));
    put(tensor.values.data(), tensor.values.size() * sizeof(float));
  }
  const std::uint64_t sum = hash.value();
  put_number(sum);
  stream_.flush();
  if (!stream_) {
    throw std::runtime_error(fmt::format("gradient file {} cannot be written: is the disk full?", path_));
  }
  last_ = outline(step);
  any_ = true;
}

}  // namespace thinwire::apps
