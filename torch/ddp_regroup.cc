// A resumed run's first step. DDP groups parameters anew after a process's first step, so it takes that one
// in other buckets than the run that it goes on with did; and systems draw, sketch and choose per bucket. So
// the engine keeps its buckets in states, and takes the first step after load() in those: gradients are
// copied into them, and means back.

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "torch/ddp_lane.h"

namespace thinwire {
namespace {

const std::string kBucket = "ddp_bucket/";
const std::string kPlace = "ddp_place/";

}  // namespace

/// Layouts are of the sessions that `writer` has the state of.
void DdpEngine::save_layouts(const std::vector<Layout>& layouts, StateWriter& writer) {
  for (std::size_t bucket = 0; bucket < layouts.size(); ++bucket) {
    for (std::size_t place = 0; place < layouts[bucket].parameters.size(); ++place) {
      const std::string& name = layouts[bucket].parameters[place].name;
      writer.put(kBucket + name, std::uint64_t{bucket});
      writer.put(kPlace + name, std::uint64_t{place});
    }
  }
}

/// The buckets in which a state was saved, made of the parameters in `now`. Empty where the state does not
/// tell, or tells of other parameters, or of buckets whose parameters do not go together.
std::vector<DdpEngine::Layout> DdpEngine::saved_layouts(const StateReader& state,
                                                        const std::vector<Layout>& now) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<const Layout*, const Parameter*>> places;
  std::size_t parameters = 0;
  for (const Layout& layout : now) {
    for (const Parameter& parameter : layout.parameters) {
      ++parameters;
      if (!state.contains(kBucket + parameter.name) || !state.contains(kPlace + parameter.name)) return {};
      const std::pair at(state.get_integer(kBucket + parameter.name),
                         state.get_integer(kPlace + parameter.name));
      places[at] = {&layout, &parameter};
    }
  }
  if (places.size() != parameters || parameters != state.names(kBucket).size()) return {};
  std::vector<Layout> layouts;
  for (const auto& [at, found] : places) {
    const auto& [bucket, place] = at;
    const auto& [layout, parameter] = found;
    if (place == 0 && bucket == layouts.size()) {
      layouts.push_back(*layout);
      layouts.back().parameters.clear();
    }
    if (bucket + 1 != layouts.size() || place != layouts.back().parameters.size()) return {};
    layouts.back().parameters.push_back(*parameter);
    const Layout& whole = layouts.back();
    const bool alike = whole.compressible == layout->compressible && whole.device == layout->device &&
                       whole.row_sparse == layout->row_sparse;
    if (!alike || (whole.row_sparse && place != 0)) return {};
  }
  return layouts;
}

namespace {

/// Parts of one bucket in another.
struct Part {
  std::size_t origin = 0;  // bucket that DDP gave
  std::int64_t begin = 0;  // in its gradient
  std::int64_t elements = 0;
};

/// What the calling thread submits to the device from now on comes after what `complete` stands for.
void wait_for(const Completion& complete, c10::Device device) {
  if (!device.is_cpu()) complete.block(current_stream(device));
}

/// DDP's buckets, each of which is done when all that it has parts in are.
class Origins {
 public:
  struct Origin {
    at::Tensor gradient;
    DdpEngine::Done done;
    std::size_t left = 0;
    std::vector<Completion> complete{};  // of the means of its parts
    std::exception_ptr error{};
  };

  explicit Origins(std::vector<Origin> origins) : origins_(std::move(origins)) {}

  void await(std::size_t origin) { ++origins_[origin].left; }

  /// mean: of a bucket made of these parts, each of another origin's or not. Ends the origins of which these
  /// were the last; throws what their `done` throws.
  void take(const std::vector<Part>& parts, const at::Tensor& mean, std::exception_ptr error) {
    std::vector<Completion> complete(parts.size());
    try {
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < parts.size() && !error; ++i) {
        const auto& [origin, at, elements] = parts[i];
        const at::Tensor& gradient = origins_[origin].gradient;
        gradient.view(-1).narrow(0, at, elements).copy_(mean.narrow(0, begin, elements));
        begin += elements;
        if (!gradient.device().is_cpu()) complete[i] = Completion(gradient.device());
      }
      // The stream that made it may take its memory for something else once it is gone here.
      if (!error && !mean.device().is_cpu()) mean.record_stream(current_stream(mean.device()));
    } catch (...) {
      error = std::current_exception();
    }
    std::vector<Origin*> ended;
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        Origin& origin = origins_[parts[i].origin];
        if (error) origin.error = error;
        origin.complete.push_back(std::move(complete[i]));
        if (--origin.left == 0) ended.push_back(&origin);
      }
    }
    std::exception_ptr failure;
    for (Origin* origin : ended) {
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
  std::mutex mutex_;
  std::vector<Origin> origins_;
};

}  // namespace

/// The same step in the buckets `layouts` from `first` on; those before are what they were. Empty, and
/// changes nothing, where they are not made of the same parameters. Called where submit() is.
std::vector<DdpEngine::Item> DdpEngine::regrouped(std::vector<Item>& items,
                                                  const std::vector<Layout>& layouts,
                                                  std::size_t first) const {
  std::map<std::string, Part> parts_of;
  for (std::size_t origin = 0; origin < items.size(); ++origin) {
    if (items[origin].bucket.parameters.empty()) return {};
    std::int64_t begin = 0;
    for (const Parameter& parameter : items[origin].bucket.parameters) {
      const auto elements = static_cast<std::int64_t>(parameter.elements);
      parts_of[parameter.name] = {origin, begin, elements};
      begin += elements;
    }
  }
  std::size_t used = 0;
  std::vector<std::vector<Part>> groups;
  for (std::size_t index = first; index < layouts.size(); ++index) {
    std::vector<Part> parts;
    for (const Parameter& parameter : layouts[index].parameters) {
      const auto found = parts_of.find(parameter.name);
      if (found == parts_of.end() || static_cast<std::size_t>(found->second.elements) != parameter.elements)
        return {};
      parts.push_back(found->second);
      const Bucket& own = items[parts.back().origin].bucket;
      const Bucket& front = items[parts.front().origin].bucket;
      if (layout_of(own).row_sparse != layouts[index].row_sparse ||
          own.gradient.scalar_type() != front.gradient.scalar_type() ||
          own.gradient.device() != front.gradient.device()) {
        return {};
      }
    }
    if (parts.empty()) return {};
    used += parts.size();
    groups.push_back(std::move(parts));
  }
  if (used != parts_of.size()) return {};

  std::vector<Item> regrouped;
  std::vector<Origins::Origin> list;
  for (const Item& item : items) list.push_back({.gradient = item.bucket.gradient, .done = item.done});
  const auto origins = std::make_shared<Origins>(std::move(list));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Bucket& front = items[groups[g].front().origin].bucket;
    const auto device = front.gradient.device();
    std::vector<at::Tensor> pieces;
    for (const Part& part : groups[g]) {
      const Bucket& origin = items[part.origin].bucket;
      wait_for(origin.complete, device);
      if (!origin.gradient.is_sparse()) {
        pieces.push_back(origin.gradient.view(-1).narrow(0, part.begin, part.elements));
      }
    }
    Item item;
    item.bucket.index = first + g;
    item.bucket.last = g + 1 == groups.size();
    item.bucket.parameters = layouts[first + g].parameters;
    item.bucket.gradient = pieces.empty() ? front.gradient : at::cat(pieces);
    if (!device.is_cpu()) item.bucket.complete = Completion(device);
    if (pieces.empty()) {
      item.done = items[groups[g].front().origin].done;
      regrouped.push_back(std::move(item));
      continue;
    }
    for (const Part& part : groups[g]) origins->await(part.origin);
    item.done = [origins, parts = std::move(groups[g])](const at::Tensor& mean,
                                                        const std::exception_ptr& error) {
      origins->take(parts, mean, error);
    };
    regrouped.push_back(std::move(item));
  }
  items.clear();
  return regrouped;
}

}  // namespace thinwire
