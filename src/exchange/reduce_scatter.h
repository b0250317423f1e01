#pragma once
// What systems share where each rank needs a part of the mean alone (Step::reduce_scatter). The bucket is W
// parts of the same length. Every rank codes each part by itself and sends it to its owner, who averages what
// all ranks say.
//
//   p --codes of part o--> rank o: mean over ranks of Q(p), in rank order; residual = p - Q(p), of all parts
//
// Bytes per rank: (W - 1) times one frame's, whatever the system's codes of a part take.

#include "exchange/shard_exchange.h"

namespace thinwire {

/// What body does with the coder of part `owner`.
using WithCoder = FunctionRef<void(std::size_t owner, FunctionRef<void(Coder&)> body)>;

/// Collective. gradient: this rank's part becomes the mean over ranks of Q(p), the others have no meaning.
/// residual, unless empty: p - Q(p). Where any rank has a value that is not finite, or the ranks' values add
/// up to one, report.finite becomes false on all ranks, and residual stays.
/// shape: of the codes of a part. own: the coder of this rank's part; others: those of the others, each made
/// anew whenever it is asked for.
void reduce_scatter_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          FunctionRef<CodedShape(std::size_t owner)> shape, Coder& own, WithCoder others);

/// The same. make(owner, gradient, residual): the coder of a part, of which it gets both.
template <class Make>
void reduce_scatter_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          FunctionRef<CodedShape(std::size_t owner)> shape, Make make) {
  const std::size_t part = gradient.size() / static_cast<std::size_t>(step.communicator.size());
  const auto coder_of = [&](std::size_t owner) {
    return make(owner, gradient.subspan(owner * part, part),
                residual.empty() ? residual : residual.subspan(owner * part, part));
  };
  auto own = coder_of(static_cast<std::size_t>(step.communicator.rank()));
  reduce_scatter_coded(bucket, gradient, residual, step, shape, own,
                       [&](std::size_t owner, FunctionRef<void(Coder&)> body) {
                         auto coder = coder_of(owner);
                         body(coder);
                       });
}

/// float32 themselves: gradient's own part becomes the mean of p, residual, unless empty, 0. Otherwise as
/// above.
void reduce_scatter_floats(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step);

/// What reduce_scatter_coded sends from one rank for parts of this shape. elements: of the whole bucket.
constexpr std::uint64_t reduce_scatter_bytes(std::uint64_t elements, const CodedShape& shape,
                                             int world_size) {
  return coded_bytes(elements / static_cast<std::uint64_t>(world_size), shape, world_size);
}

}  // namespace thinwire
