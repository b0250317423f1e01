// Ranks of a host that act as one, and shards that share a threshold: what a session does beside its system.
#include <limits>
#include <stdexcept>
#include <utility>

#include "exchange/collectives.h"
#include "exchange/host_groups.h"
#include "kernels/dense/dense.h"
#include "session/configuration.h"
#include "session/session_parts.h"

namespace thinwire {

/// The bucket becomes this rank's part of it, whose parameters are returned.
BucketLayout Session::take_part(Bucket& bucket, BucketLayout whole) {
  BucketLayout part;
  if (bucket.row_sparse) {
    bucket.parts.begins = hosts_->parts_of_rows(bucket.whole_rows);
    const std::size_t place = hosts_->place();
    bucket.rows = bucket.parts.begins[place + 1] - bucket.parts.begins[place];
    if (bucket.rows != 0) part = {{whole[0].name, bucket.rows * bucket.width, bucket.rows}};
  } else {
    bucket.parts = hosts_->parts(whole);
    part = bucket.parts.own;
    bucket.rows = 0;
    for (const Parameter& one : part) bucket.rows += one.elements;
  }
  whole_.push_back(std::move(whole));
  return part;
}

/// Which buckets all shards have something of.
void Session::compare_shards() {
  std::string mine;
  for (const auto& bucket : buckets_) mine += bucket->elements() == 0 ? '0' : '1';
  constexpr std::size_t kMostBuckets = std::size_t{1} << 24;
  const auto all = gather_bytes(*options_.shards, {.step = step_, .kind = "shards"}, mine, kMostBuckets);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != mine.size()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " of SessionOptions::shards has " +
                               std::to_string(all[rank].size()) + " buckets, this one " +
                               std::to_string(mine.size()) + ": give all shards the same buckets");
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (rank == 0) buckets_[i]->shards_have = true;
      buckets_[i]->shards_have = buckets_[i]->shards_have && all[rank][i] == '1';
    }
  }
}

Communicator& Session::all_ranks() const {
  return hosts_ ? hosts_->all() : communicator_;
}

/// What was sent so far to others than those among which the system works.
std::uint64_t Session::bytes_beside() const {
  if (hosts_) return hosts_->all().traffic().sent_bytes - communicator_.traffic().sent_bytes;
  return options_.shards == nullptr ? 0 : options_.shards->traffic().sent_bytes;
}

/// Where the system refuses, or not all of its means are finite, the step is finite on no rank of the host:
/// also on those that had nothing for the system.
template <class Synchronize>
void Session::told_to_host(Bucket& own, Step& step, Synchronize&& synchronize) {
  try {
    synchronize();
  } catch (const std::invalid_argument&) {
    hosts_->all_say(own.host_workspace, false);
    throw;
  }
  step.report.finite = hosts_->all_say(own.host_workspace, step.report.finite);
}

/// gradient: of the whole bucket.
void Session::synchronize_whole(Bucket& own, BucketId bucket, Span<float> gradient, Span<float> residual,
                                Span<const float> pending, Step& step) {
  if (!hosts_) return synchronize_floats(own, bucket, gradient, residual, pending, step);
  if (gradient.empty()) {
    step.report.formula_bytes = 0;
    return;
  }
  const bool on_device = gradient.memory() != Memory::host;
  const HostGroups::Parts& parts = own.parts;
  const auto part_at = [&](Span<float> all, std::size_t place) {
    return all.subspan(parts.begins[place], parts.begins[place + 1] - parts.begins[place]);
  };
  const Span<float> all = (on_device ? own.scratch : own.host_workspace).take<float>(gradient.size());
  for (std::size_t place = 0; place < parts.slices.size(); ++place) {
    gather_chunks(own.executor, parts.slices[place], gradient, part_at(all, place));
  }
  const Span<float> on_host = on_device ? own.host_workspace.take<float>(all.size()) : all;
  if (on_device) copy<float>(own.executor, all, on_host);
  hosts_->reduce(executor_of(true), own.host_workspace, on_host, parts.begins);
  const std::size_t place = hosts_->place();
  const Span<float> part = part_at(all, place);
  if (on_device) copy<float>(own.executor, part_at(on_host, place), part);
  told_to_host(own, step, [&] { synchronize_floats(own, bucket, part, residual, pending, step); });
  if (!step.report.finite) {
    fill(own.executor, gradient, std::numeric_limits<float>::quiet_NaN());
    own.executor.wait();
    return;
  }
  if (on_device) copy<float>(own.executor, part, part_at(on_host, place));
  hosts_->gather(own.host_workspace, on_host, parts.begins);
  if (on_device) copy<float>(own.executor, on_host, all);
  for (std::size_t other = 0; other < parts.slices.size(); ++other) {
    scatter_chunks(own.executor, parts.slices[other], part_at(all, other), gradient, {});
  }
  own.executor.wait();
}

RowSparse Session::synchronize_table_by_hosts(Bucket& own, BucketId bucket, const RowSparse& gradient,
                                              Span<float> residual, Span<const float> pending, Step& step) {
  Workspace& workspace = own.host_workspace;
  const RowSparse part = hosts_->reduce_rows(step.executor, workspace, gradient, own.parts.begins);
  RowSparse mean;
  told_to_host(own, step, [&] { mean = synchronize_table(own, bucket, part, residual, pending, step); });
  return step.report.finite ? hosts_->gather_rows(workspace, mean, own.parts.begins) : gradient;
}

}  // namespace thinwire
