#pragma once
// What a session is made of, for its own sources.

#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/bucket_vectors.h"
#include "exchange/host_groups.h"
#include "session/aside.h"
#include "thinwire/session.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// What belongs to one bucket.
struct Session::Bucket {
  explicit Bucket(Executor& on) : executor(on), workspace(on.shared_allocator()), scratch(on.allocator()) {}

  Executor& executor;
  std::size_t rows = 0;
  std::size_t width = 1;
  bool row_sparse = false;
  std::size_t pipeline = 0;
  std::vector<std::size_t> parameter_ends;
  std::vector<std::size_t> parameter_rows;
  std::vector<std::string> parameter_names;
  std::uint64_t names = 0;  // hash of the parameters' names
  // Of the bucket as it was added. With ranks of a host all else here is of this rank's part.
  std::size_t whole_rows = 0;
  HostGroups::Parts parts{};   // of a host's ranks; of a table the begins alone, in rows
  bool shards_have = false;    // all of SessionOptions::shards have something of it
  Workspace host_workspace{};  // of what the host's ranks exchange
  Workspace workspace;
  Workspace scratch;  // of a device; a step on the host takes all from its workspace
  StepReport report;
  bool ran = false;  // in this step

  std::size_t elements() const { return rows * width; }
  std::size_t whole_elements() const { return whole_rows * width; }
};

struct Session::Undelivered {
  BucketVectors residuals{kResidual};
  /// Whose changes next_step() keeps. While `keeper` is at work nothing else of this is touched, nor any
  /// system.
  std::vector<BucketId> to_keep;
  std::exception_ptr keep_error;
  /// Of each pipeline that cannot undo by itself, what it saved after the last step that counts.
  std::vector<std::optional<StateReader>> saved;
  struct Place {
    BucketId bucket;
    std::size_t begin, elements;
  };
  /// Where parameters are, of the first `placed` buckets: a step may leave out thousands.
  std::multimap<std::string, Place, std::less<>> places;
  BucketId placed = 0;
  Aside keeper;  // last: it ends before what it works on
};

}  // namespace thinwire
