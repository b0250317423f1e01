#include "apps/plan_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string_view>

namespace thinwire::apps {
namespace {

constexpr std::uint64_t kMostElements = 0xFFFFFFFF;
constexpr std::size_t kMostParameters = 1'000'000;

std::uint64_t whole_number(std::string_view text, std::string_view shape) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == 0 || value > kMostElements) {
    throw std::invalid_argument(
        fmt::format("shape '{}' is not like 512x2048 or, for 24 of them, 512x2048*24", shape));
  }
  return value;
}

/// As PyTorch cuts tensors into matrices: the first dimension by the rest.
void add_shape(const std::string& shape, std::vector<Parameter>& parameters) {
  std::string_view rest = shape;
  std::uint64_t times = 1;
  if (const std::size_t star = rest.find('*'); star != std::string_view::npos) {
    times = whole_number(rest.substr(star + 1), shape);
    rest = rest.substr(0, star);
  }
  std::uint64_t rows = 0;
  std::uint64_t elements = 1;
  for (std::size_t begin = 0; begin <= rest.size();) {
    const std::size_t end = std::min(rest.find('x', begin), rest.size());
    const std::uint64_t dimension = whole_number(rest.substr(begin, end - begin), shape);
    if (rows == 0) rows = dimension;
    elements *= dimension;
    if (elements > kMostElements)
      throw std::invalid_argument(fmt::format("shape '{}' has 2^32 elements or more", shape));
    begin = end + 1;
  }
  if (times > kMostParameters - std::min(parameters.size(), kMostParameters))
    throw std::invalid_argument(fmt::format("shape '{}': more than a million parameters", shape));
  for (std::uint64_t i = 0; i < times; ++i) {
    parameters.push_back({fmt::format("p{}", parameters.size()), elements, rows});
  }
}

/// Square matrices, and a vector of what remains.
BucketLayout squares(std::uint64_t elements, std::uint64_t width, const std::string& name) {
  BucketLayout bucket;
  const std::uint64_t square = width * width;
  for (std::uint64_t done = 0; done < elements;) {
    const std::uint64_t rows = std::min(width, (elements - done) / width);
    const std::uint64_t now = rows == 0 ? elements - done : std::min(square, rows * width);
    bucket.push_back({fmt::format("{}.{}", name, bucket.size()), now, rows == 0 ? now : rows});
    done += now;
  }
  return bucket;
}

/// Backward begins at the model's end.
std::vector<BucketLayout> grouped(const std::vector<Parameter>& parameters, double megabytes) {
  std::vector<BucketLayout> buckets;
  double bytes = 0;
  double limit = 0x1p20;
  for (auto one = parameters.rbegin(); one != parameters.rend(); ++one) {
    if (buckets.empty() || bytes >= limit) {
      if (!buckets.empty()) limit = megabytes * 0x1p20;
      buckets.emplace_back();
      bytes = 0;
    }
    bytes += 4 * static_cast<double>(one->elements);
    buckets.back().push_back(*one);
  }
  return buckets;
}

std::vector<std::uint64_t> ddp_sizes(std::uint64_t elements, double megabytes) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t limit = 1 << 18;
  while (elements > 0) {
    sizes.push_back(std::min(elements, limit));
    elements -= sizes.back();
    limit = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(megabytes * 0x1p18));
  }
  return sizes;
}

}  // namespace

PlanLayout plan_layout(const PlanLayoutOptions& options) {
  if (!(options.bucket_megabytes > 0 && options.bucket_megabytes <= 17'000))
    throw std::invalid_argument(
        fmt::format("buckets of {} MB: above 0 and at most 17000 is needed", options.bucket_megabytes));
  // A signed number below 0 is one of the largest here.
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 44;
  if (options.elements && (*options.elements == 0 || *options.elements > kMostElements))
    throw std::invalid_argument(fmt::format("--elements {}: 1 to {} is needed",
                                            static_cast<std::int64_t>(*options.elements), kMostElements));
  if (options.width == 0 || options.width > 0xFFFF)
    throw std::invalid_argument(fmt::format("matrices of width {}: 1 to 65535 is needed", options.width));
  PlanLayout layout;
  if (!options.shapes.empty()) {
    if (options.elements || !options.buckets.empty())
      throw std::invalid_argument(
          "shapes say how many elements there are: leave out the number of elements and buckets");
    std::vector<Parameter> parameters;
    for (const std::string& shape : options.shapes) add_shape(shape, parameters);
    layout.buckets = grouped(parameters, options.bucket_megabytes);
    return layout;
  }
  std::vector<std::uint64_t> sizes = options.buckets;
  const std::uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (sizes.empty() && !options.elements)
    throw std::invalid_argument(
        "how large is the model? give its number of elements, its buckets, or the shapes of its parameters");
  if (!sizes.empty() && options.elements && *options.elements != sum)
    throw std::invalid_argument(
        fmt::format("buckets have {} elements together, and not {}", sum, *options.elements));
  if (sizes.empty()) sizes = ddp_sizes(*options.elements, options.bucket_megabytes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 || sizes[i] > kMostElements)
      throw std::invalid_argument(fmt::format("a bucket of {} elements: 1 to 2^32 - 1 is needed", sizes[i]));
    layout.buckets.push_back(squares(sizes[i], options.width, fmt::format("b{}", i)));
  }
  layout.assumed = fmt::format(
      "assumed: parameters are matrices of {0} x {0}; name shapes or a width if they are not", options.width);
  return layout;
}

StepCompute even_compute(const std::vector<BucketLayout>& buckets, double seconds, double threads) {
  if (!(seconds >= 0 && std::isfinite(seconds)))
    throw std::invalid_argument(
        fmt::format("a step of {} s: a number that is not negative is needed", seconds));
  StepCompute compute{.backward_end = seconds, .threads = threads};
  double all = 0;
  for (const auto& bucket : buckets) {
    for (const auto& parameter : bucket) all += static_cast<double>(parameter.elements);
  }
  double done = 0;
  for (const auto& bucket : buckets) {
    for (const auto& parameter : bucket) done += static_cast<double>(parameter.elements);
    compute.ready.push_back(std::min(seconds, seconds / 3 * (1 + 2 * done / all)));
  }
  return compute;
}

}  // namespace thinwire::apps
