#include "torch/ddp_regroup.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace thinwire {
namespace {

/// Where a parameter of a new bucket is in DDP's.
struct Part {
  std::size_t origin = 0;  // DDP's bucket, counted from the first of the items
  std::int64_t begin = 0;  // in its gradient
  std::int64_t elements = 0;
};
using Parts = std::vector<Part>;  // of one new bucket

/// What the calling thread submits to the device from now on comes after what `complete` stands for.
void wait_for(const Completion& complete, c10::Device device) {
  if (!device.is_cpu()) complete.block(current_stream(device));
}

/// DDP's buckets, each of which is done when all that it has parts in are.
class Origins {
 public:
  Origins(const std::vector<DdpItem>& items, const std::vector<Parts>& groups) {
    for (const DdpItem& item : items) {
      origins_.push_back({.gradient = item.bucket.gradient, .done = item.done});
    }
    for (const Parts& parts : groups) {
      for (const Part& part : parts) ++origins_[part.origin].left;
    }
  }

  /// mean: of the bucket made of these parts. Ends the origins of which these were the last; throws what
  /// their `done` throws.
  void take(const Parts& parts, const at::Tensor& mean, std::exception_ptr error) {
    std::vector<Completion> complete(parts.size());
    if (!error) {
      try {
        scatter(parts, mean, complete);
      } catch (...) {
        error = std::current_exception();
      }
    }
    std::exception_ptr failure;
    for (Origin* origin : ended_by(parts, std::move(complete), error)) {
      try {
        for (const Completion& part : origin->complete) wait_for(part, origin->gradient.device());
        origin->done(origin->error ? at::Tensor() : origin->gradient, origin->error);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  struct Origin {
    at::Tensor gradient;
    DdpDone done;
    std::size_t left = 0;
    std::vector<Completion> complete{};  // of the means of its parts
    std::exception_ptr error{};
  };

  void scatter(const Parts& parts, const at::Tensor& mean, std::vector<Completion>& complete) const {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& [origin, at, elements] = parts[i];
      const at::Tensor& gradient = origins_[origin].gradient;
      gradient.view(-1).narrow(0, at, elements).copy_(mean.narrow(0, begin, elements));
      begin += elements;
      if (!gradient.device().is_cpu()) complete[i] = Completion(gradient.device());
    }
    // The stream that made it may take its memory for something else once it is gone here.
    if (!mean.device().is_cpu()) mean.record_stream(current_stream(mean.device()));
  }

  std::vector<Origin*> ended_by(const Parts& parts, std::vector<Completion> complete,
                                const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    std::vector<Origin*> ended;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Origin& origin = origins_[parts[i].origin];
      if (error) origin.error = error;
      origin.complete.push_back(std::move(complete[i]));
      if (--origin.left == 0) ended.push_back(&origin);
    }
    return ended;
  }

  std::mutex mutex_;
  std::vector<Origin> origins_;
};

std::map<std::string, Part> parts_by_name(const std::vector<DdpItem>& items) {
  std::map<std::string, Part> parts;
  for (std::size_t origin = 0; origin < items.size(); ++origin) {
    std::int64_t begin = 0;
    for (const Parameter& parameter : items[origin].bucket.parameters) {
      const auto elements = static_cast<std::int64_t>(parameter.elements);
      parts[parameter.name] = {origin, begin, elements};
      begin += elements;
    }
  }
  return parts;
}

/// The parts of each bucket from `first` on; nullopt where these are not made of what the items hold.
std::optional<std::vector<Parts>> groups_of(const std::vector<DdpItem>& items,
                                            const std::vector<DdpLayout>& layouts, std::size_t first) {
  const auto by_name = parts_by_name(items);
  std::size_t used = 0;
  std::vector<Parts> groups;
  for (std::size_t index = first; index < layouts.size(); ++index) {
    Parts parts;
    for (const Parameter& parameter : layouts[index].parameters) {
      const auto found = by_name.find(parameter.name);
      if (found == by_name.end()) return std::nullopt;
      parts.push_back(found->second);
      const at::Tensor& own = items[parts.back().origin].bucket.gradient;
      const at::Tensor& front = items[parts.front().origin].bucket.gradient;
      const bool fits = static_cast<std::size_t>(parts.back().elements) == parameter.elements &&
                        own.is_sparse() == layouts[index].row_sparse &&
                        own.scalar_type() == front.scalar_type() && own.device() == front.device();
      if (!fits) return std::nullopt;
    }
    if (parts.empty()) return std::nullopt;
    used += parts.size();
    groups.push_back(std::move(parts));
  }
  if (used != by_name.size()) return std::nullopt;
  return groups;
}

/// The gradient of a new bucket: a copy of its parts. For rows, which are a bucket of their own, DDP's.
at::Tensor gathered(const std::vector<DdpItem>& items, const Parts& parts) {
  const at::Tensor& front = items[parts.front().origin].bucket.gradient;
  std::vector<at::Tensor> values;
  for (const Part& part : parts) {
    const DdpBucket& origin = items[part.origin].bucket;
    wait_for(origin.complete, front.device());
    if (!front.is_sparse()) {
      values.push_back(origin.gradient.view(-1).narrow(0, part.begin, part.elements));
    }
  }
  return front.is_sparse() ? front : at::cat(values);
}

}  // namespace

std::vector<DdpItem> regrouped(std::vector<DdpItem>& items, const std::vector<DdpLayout>& layouts,
                               std::size_t first) {
  for (const DdpItem& item : items) {
    if (item.bucket.parameters.empty()) return {};
  }
  auto groups = groups_of(items, layouts, first);
  if (!groups) return {};
  const auto origins = std::make_shared<Origins>(items, *groups);
  std::vector<DdpItem> regrouped;
  for (std::size_t g = 0; g < groups->size(); ++g) {
    Parts& parts = (*groups)[g];
    DdpItem item;
    item.bucket.index = first + g;
    item.bucket.last = g + 1 == groups->size();
    item.bucket.parameters = layouts[first + g].parameters;
    item.bucket.gradient = gathered(items, parts);
    const auto device = item.bucket.gradient.device();
    if (!device.is_cpu()) item.bucket.complete = Completion(device);
    if (item.bucket.gradient.is_sparse()) {
      item.done = items[parts.front().origin].done;
    } else {
      item.done = [origins, parts = std::move(parts)](const at::Tensor& mean,
                                                      const std::exception_ptr& error) {
        origins->take(parts, mean, error);
      };
    }
    regrouped.push_back(std::move(item));
  }
  items.clear();
  return regrouped;
}

}  // namespace thinwire
