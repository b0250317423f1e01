// DeMo: momentum that stays where it is, but for its few largest cosine coefficients, which travel.
//
// Source: B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870v2,
// algorithm 1 and section 3.
//
//   p = gradient + momentum * residual --blocks, DCT--> `top` largest of each --index, value--> all
//   sum of everybody's --inverse DCT--> / W, or its sign --> mean
//   residual = p - inverse DCT of this rank's own
//
// The residual is DeMo's momentum: what is not sent stays in it and decays. A matrix is cut into blocks of
// chunk x chunk elements, everything else into runs of `chunk`; what remains at the edges are smaller blocks.
//
// With sign=on the mean is the sign of the sum, -1, 0 or 1 (the paper's form). Without it
//
//   sum over ranks of (gradient + momentum * residual_in) = W * mean + sum over ranks of residual_out
//
// which is the contract's equation for momentum=1.
//
// Deviations: the authors' code multiplies the gradient by the learning rate before it joins the momentum.
// Where several ranks send the same coefficient, it averages over these; here all are summed as in the
// paper's text.
//
// Bytes per rank: (W-1) * (4 K + ceil(bits K / 8)). K: coefficients of all blocks, `top` of each, or all of a
// block that has no more. bits: of an index within the largest block.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "baselines/baselines.h"
#include "baselines/cosine_transform.h"
#include "core/partition.h"
#include "exchange/coded_exchange.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

struct DemoOptions {
  std::size_t chunk = 64;
  std::size_t top = 32;
  float momentum = 0.999f;
  bool sign = true;
};

/// One block of a parameter, and where its coefficients lie among all that are sent.
struct Block {
  std::size_t begin = 0;   // first element in the bucket
  std::size_t stride = 0;  // from row to row
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t first = 0;
  std::size_t sent = 0;

  std::size_t elements() const { return rows * columns; }
};

/// How a bucket is cut, by a Step's or a Workload's description of its parameters.
template <class Parameters>
class BlockCut {
 public:
  BlockCut(const Parameters& parameters, std::size_t elements, const DemoOptions& options)
      : parameters_(parameters), elements_(elements), options_(options) {
    std::size_t largest = 0;
    for_each([&](const Block& block) {
      ++blocks_;
      sent_ += block.sent;
      largest = std::max(largest, block.elements());
    });
    bits_ = largest < 2 ? 1 : static_cast<std::size_t>(std::bit_width(largest - 1));
  }

  /// body(block) in order.
  template <class Body>
  void for_each(Body&& body) const {
    const auto& ends = parameters_.parameter_ends;
    const std::size_t count = ends.empty() ? 1 : ends.size();
    std::size_t begin = 0;
    std::size_t sent = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = (ends.empty() ? elements_ : ends[i]) - begin;
      const std::size_t given = parameters_.parameter_rows.empty() ? 0 : parameters_.parameter_rows[i];
      const std::size_t rows = given == 0 || given == size ? 1 : given;
      for_each_block(begin, rows, size / rows, sent, body);
      begin += size;
    }
  }

  std::size_t blocks() const { return blocks_; }
  std::size_t sent() const { return sent_; }  ///< Coefficients, of all blocks.
  std::size_t bits() const { return bits_; }  ///< Of an index.
  CodedShape shape() const { return {.bits = bits_, .table_floats = sent_, .type = FrameType::codes}; }

 private:
  template <class Body>
  void for_each_block(std::size_t begin, std::size_t rows, std::size_t columns, std::size_t& sent,
                      Body& body) const {
    if (columns == 0) return;
    for (std::size_t row = 0; row < rows; row += options_.chunk) {
      for (std::size_t column = 0; column < columns; column += options_.chunk) {
        Block block{.begin = begin + row * columns + column,
                    .stride = columns,
                    .rows = std::min(options_.chunk, rows - row),
                    .columns = std::min(options_.chunk, columns - column),
                    .first = sent};
        block.sent = std::min(options_.top, block.elements());
        sent += block.sent;
        body(static_cast<const Block&>(block));
      }
    }
  }

  const Parameters& parameters_;
  std::size_t elements_;
  const DemoOptions& options_;
  std::size_t blocks_ = 0;
  std::size_t sent_ = 0;
  std::size_t bits_ = 1;
};

/// One step. Works in host memory: a device's gradient and residual come here and go back.
class DemoStep {
 public:
  DemoStep(const DemoOptions& options, CosineTransform& transform, BucketId bucket, Span<float> gradient,
           Span<float> residual, Step& step)
      : options_(options),
        transform_(transform),
        step_(step),
        cut_(step, gradient.size(), options),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual) {
    std::size_t used = 0;
    cut_.for_each([&](const Block& block) {
      blocks_[used++] = block;
      transform_.prepare(block.rows);
      transform_.prepare(block.columns);
    });
  }

  void run() {
    sent_by_ = gather_coded(
        bucket_, cut_.sent(), step_, cut_.shape(), [&](const CodedFrame& own) { return choose(own); },
        [&](std::size_t rank, const CodedFrame& frame) {
          bound_of_table(frame.table(), rank);
          if (rank != self_) unpack(rank, frame);
        });
    step_.report.finite = !sent_by_.empty();
    if (!step_.report.finite) return;
    step_.clock.enter(Phase::decompress);
    // All ranks add up the same values, so all come to the same verdict.
    step_.report.finite = add_up();
    if (step_.report.finite) keep_rest();
  }

 private:
  static constexpr std::size_t kBuffers = 2;
  /// No coefficient of values up to here, and no sum on the way to it, leaves the range of float.
  static constexpr float kLargest = std::numeric_limits<float>::max() / 65536;

  /// What one thread works with.
  struct Buffers {
    Span<float> block{};
    Span<float> scratch{};
    Span<std::uint32_t> order{};
  };

  Span<float> in_host_memory(Span<float> values) const {
    if (step_.executor.memory() == Memory::host || values.empty()) return values;
    const auto host = step_.workspace.take<float>(values.size());
    copy(step_.executor, Span<const float>(values), host);
    return host;
  }

  /// body(block, buffers) for all blocks, on several threads.
  template <class Body>
  void for_each_block(Body&& body) {
    step_.executor.parallel_for(parts_, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t part = begin; part < end; ++part) {
        const auto memory = memory_.subspan(part * kBuffers * area_, kBuffers * area_);
        const Buffers buffers{memory.first(area_), memory.subspan(area_, area_),
                              order_.subspan(part * area_, area_)};
        const std::size_t first = part_begin(blocks_.size(), parts_, part);
        const std::size_t count = part_size(blocks_.size(), parts_, part);
        for (const Block& block : blocks_.subspan(first, count)) body(block, buffers);
      }
    });
  }

  /// body(place in the bucket, place in the block).
  template <class Body>
  static void for_each_element(const Block& block, Body&& body) {
    for (std::size_t row = 0; row < block.rows; ++row) {
      for (std::size_t column = 0; column < block.columns; ++column) {
        body(block.begin + row * block.stride + column, row * block.columns + column);
      }
    }
  }

  float p(std::size_t at) const {
    return residual_.empty() ? host_gradient_[at]
                             : host_gradient_[at] + options_.momentum * host_residual_[at];
  }

  /// This rank's largest coefficients, to its frame. False where p holds a value that is not finite, or too
  /// large to transform.
  bool choose(const CodedFrame& own) {
    std::atomic<bool> finite{true};
    for_each_block([&](const Block& block, const Buffers& with) {
      bool within = true;
      for_each_element(block, [&](std::size_t at, std::size_t to) {
        with.block[to] = p(at);
        within = within && std::fabs(with.block[to]) <= kLargest;
      });
      if (within) {
        transform_.forward(block.rows, block.columns, with.block, with.scratch);
        choose_of(block, with, own.table());
      } else {
        finite = false;
      }
    });
    if (finite) pack(own.codes());
    return finite;
  }

  void choose_of(const Block& block, const Buffers& with, Span<float> values) {
    const auto order = with.order.first(block.elements());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const float left = std::fabs(with.block[a]);
      const float right = std::fabs(with.block[b]);
      return left > right || (left == right && a < b);
    };
    auto* const last = order.begin() + block.sent;
    if (block.sent < order.size()) std::nth_element(order.begin(), last, order.end(), larger);
    std::sort(order.begin(), last);
    for (std::size_t i = 0; i < block.sent; ++i) {
      values[block.first + i] = with.block[order[i]];
      indices_of(self_)[block.first + i] = order[i];
    }
  }

  Span<std::uint32_t> indices_of(std::size_t rank) const {
    return indices_.subspan(rank * cut_.sent(), cut_.sent());
  }

  /// This rank's indices as planes of bits.
  void pack(Span<std::uint64_t> codes) const {
    const auto indices = indices_of(self_);
    std::ranges::fill(codes, 0);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (std::size_t bit = 0; bit < cut_.bits(); ++bit) {
        codes[i / 64 * cut_.bits() + bit] |= std::uint64_t{indices[i] >> bit & 1} << (i % 64);
      }
    }
  }

  void unpack(std::size_t rank, const CodedFrame& frame) const {
    const auto codes = frame.codes();
    const auto indices = indices_of(rank);
    for (const Block& block : blocks_) {
      for (std::size_t i = block.first; i < block.first + block.sent; ++i) {
        std::uint32_t index = 0;
        for (std::size_t bit = 0; bit < cut_.bits(); ++bit) {
          index |= static_cast<std::uint32_t>(codes[i / 64 * cut_.bits() + bit] >> (i % 64) & 1) << bit;
        }
        if (index >= block.elements()) refuse(rank, index, block);
        indices[i] = index;
      }
    }
  }

  [[noreturn]] static void refuse(std::size_t rank, std::uint32_t index, const Block& block) {
    throw CorruptFrame("frame refused: an index of rank " + std::to_string(rank) + " is " +
                       std::to_string(index) + ", its block has " + std::to_string(block.elements()) +
                       " coefficients");
  }

  /// Adds what `rank` has sent of the block to its coefficients.
  void add_sent(std::size_t rank, const Block& block, Span<float> coefficients) const {
    const auto values = sent_by_[rank].table();
    const auto indices = indices_of(rank);
    for (std::size_t i = block.first; i < block.first + block.sent; ++i)
      coefficients[indices[i]] += values[i];
  }

  /// The mean, or its sign, to mean_. Returns whether the mean is finite.
  bool add_up() {
    std::atomic<bool> finite{true};
    const float factor = 1.0f / static_cast<float>(world_);
    for_each_block([&](const Block& block, const Buffers& with) {
      std::fill_n(with.block.begin(), block.elements(), 0.0f);
      for (std::size_t rank = 0; rank < world_; ++rank) add_sent(rank, block, with.block);
      transform_.inverse(block.rows, block.columns, with.block, with.scratch);
      bool all = true;
      for_each_element(block, [&](std::size_t at, std::size_t from) {
        const float value = with.block[from] * factor;
        all = all && std::isfinite(value);
        mean_[at] = options_.sign ? static_cast<float>(value > 0) - static_cast<float>(value < 0) : value;
      });
      if (!all) finite = false;
    });
    return finite;
  }

  /// residual = p - what this rank has sent, gradient = mean.
  void keep_rest() {
    if (!host_residual_.empty()) {
      const auto squares = step_.workspace.take<double>(blocks_.size());
      for_each_block([&](const Block& block, const Buffers& with) {
        std::fill_n(with.block.begin(), block.elements(), 0.0f);
        add_sent(self_, block, with.block);
        transform_.inverse(block.rows, block.columns, with.block, with.scratch);
        double sum = 0;
        for_each_element(block, [&](std::size_t at, std::size_t from) {
          const float left = p(at) - with.block[from];
          host_residual_[at] = left;
          sum += static_cast<double>(left) * static_cast<double>(left);
        });
        squares[static_cast<std::size_t>(&block - blocks_.data())] = sum;
      });
      step_.report.residual_norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
      if (host_residual_.data() != residual_.data())
        copy(step_.executor, Span<const float>(host_residual_), residual_);
    }
    copy(step_.executor, Span<const float>(mean_), gradient_);
  }

  const DemoOptions& options_;
  CosineTransform& transform_;
  Step& step_;
  BlockCut<Step> cut_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  const std::size_t self_ = static_cast<std::size_t>(step_.communicator.rank());
  const std::size_t world_ = static_cast<std::size_t>(step_.communicator.size());
  Span<Block> blocks_ = step_.workspace.take<Block>(cut_.blocks());
  Span<const CodedFrame> sent_by_{};  // all ranks'
  /// Of all ranks, one behind the other.
  Span<std::uint32_t> indices_ = step_.workspace.take<std::uint32_t>(cut_.sent() * world_);
  Span<float> host_gradient_ = in_host_memory(gradient_);
  Span<float> host_residual_ = in_host_memory(residual_);
  Span<float> mean_ = step_.workspace.take<float>(gradient_.size());
  const std::size_t parts_ = static_cast<std::size_t>(step_.executor.concurrency());
  const std::size_t area_ = options_.chunk * options_.chunk;
  Span<float> memory_ = step_.workspace.take<float>(parts_ * kBuffers * area_);
  Span<std::uint32_t> order_ = step_.workspace.take<std::uint32_t>(parts_ * area_);
};

class Demo final : public Synchronizer {
 public:
  explicit Demo(const DemoOptions& options) : options_(options), transform_(options.chunk) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    DemoStep(options_, transform_, bucket, gradient, residual, step).run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const BlockCut<Workload> cut(workload, workload.elements, options_);
    return coded_bytes(cut.sent(), cut.shape(), workload.world_size);
  }

 private:
  DemoOptions options_;
  CosineTransform transform_;
};

}  // namespace

SystemInfo demo_info() {
  SystemInfo info;
  info.name = "demo";
  info.summary = "the largest cosine coefficients of a momentum that is kept back, and the sign of their sum";
  info.paper = "Peng et al., DeMo, arXiv 2411.19870v2";
  info.formula = "(W-1) * (4 K + ceil(bits K / 8)), K = top coefficients of each block";
  info.feedback_default = true;
  info.corrects_momentum = true;
  // What is delivered then is a mean of gradients, and the momentum is how long a residual lasts.
  info.bears_momentum = [](const Options& options) { return !options.flag("sign"); };
  info.delivers_signs = true;
  info.options = {{"chunk", "64", "rows and columns of a block, elements of one of a vector, 2 to 128"},
                  {"top", "32", "coefficients of each block that travel, 1 to 16384"},
                  {"momentum", "0.999", "what stays of the residual from step to step, 0 to 1"},
                  {"sign", "on", "deliver the sign of the sum, for plain SGD without momentum"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<Demo>(
        DemoOptions{.chunk = static_cast<std::size_t>(options.integer("chunk", 2, 128)),
                    .top = static_cast<std::size_t>(options.integer("top", 1, 16384)),
                    .momentum = static_cast<float>(options.real("momentum", 0, 1)),
                    .sign = options.flag("sign")});
  };
  return info;
}

}  // namespace thinwire
