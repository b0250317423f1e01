#pragma once
// Every system over a real engine: steps on a dense bucket and on a table of rows, after which all ranks must
// hold the same bits, and what is lossless the exact mean.

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "session/contract_specs.h"
#include "thinwire/session.h"

namespace thinwire::testing {

class SystemsCases {
 public:
  explicit SystemsCases(Communicator& communicator) : communicator_(communicator) {}

  void run() {
    for (const auto& spec : kContractSpecs) run(spec);
  }

 private:
  static constexpr std::size_t kElements = 30'011;
  static constexpr std::size_t kRows = 1000;
  static constexpr std::size_t kWidth = 12;

  struct Input {
    std::vector<float> dense;
    std::vector<std::uint32_t> indices;
    std::vector<float> values;
  };

  /// The same on whichever rank it is computed: one element in seven, and 40 rows with repetitions.
  static Input input_of(int rank, int step) {
    std::mt19937 random(static_cast<std::uint32_t>(1000 * step + rank));
    std::normal_distribution<float> normal;
    Input input;
    input.dense.assign(kElements, 0.0f);
    for (auto& value : input.dense) {
      if (random() % 7 == 0) value = normal(random);
    }
    for (int k = 0; k < 40; ++k) {
      input.indices.push_back(static_cast<std::uint32_t>(random() % kRows));
      for (std::size_t i = 0; i < kWidth; ++i) input.values.push_back(normal(random));
    }
    return input;
  }

  void run(const std::string& spec) {
    Session session(spec, communicator_, {.seed = 3});
    const BucketId bucket = session.add_bucket({{"a", kElements / 3}, {"b", kElements - kElements / 3}});
    const BucketId table = session.add_rows("table", kRows, kWidth);
    for (int step = 0; step < 4; ++step) {
      Input input = input_of(communicator_.rank(), step);
      session.synchronize(bucket, input.dense);
      const RowSparse rows = session.synchronize_rows(
          table, {.row_indices = input.indices, .values = input.values, .rows = kRows, .width = kWidth});
      std::vector<float> rows_dense(kRows * kWidth, 0.0f);
      for (std::size_t k = 0; k < rows.size(); ++k) {
        std::memcpy(rows_dense.data() + rows.row_indices[k] * kWidth, rows.row(k).data(),
                    kWidth * sizeof(float));
      }
      require_agreement(spec, step, input.dense);
      require_agreement(spec, step, rows_dense);
      if (session.pipeline(bucket).lossless) require_mean(spec, step, input.dense, rows_dense);
      session.next_step();
    }
  }

  void require_agreement(const std::string& spec, int step, const std::vector<float>& mine) {
    std::vector<float> first = mine;
    communicator_.broadcast(as_writable_bytes(Span<float>(first)), 0);
    if (std::memcmp(first.data(), mine.data(), mine.size() * sizeof(float)) != 0) {
      fail(spec, step, "rank " + std::to_string(communicator_.rank()) + " and rank 0 hold different means");
    }
  }

  void require_mean(const std::string& spec, int step, const std::vector<float>& dense,
                    const std::vector<float>& rows) {
    std::vector<double> wanted(kElements, 0.0);
    std::vector<double> wanted_rows(kRows * kWidth, 0.0);
    const int world = communicator_.size();
    for (int rank = 0; rank < world; ++rank) {
      const Input input = input_of(rank, step);
      for (std::size_t i = 0; i < kElements; ++i) wanted[i] += static_cast<double>(input.dense[i]) / world;
      for (std::size_t k = 0; k < input.values.size(); ++k) {
        wanted_rows[input.indices[k / kWidth] * kWidth + k % kWidth] +=
            static_cast<double>(input.values[k]) / world;
      }
    }
    compare(spec, step, dense, wanted);
    compare(spec, step, rows, wanted_rows);
  }

  static void compare(const std::string& spec, int step, const std::vector<float>& got,
                      const std::vector<double>& wanted) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::fabs(static_cast<double>(got[i]) - wanted[i]) > 1e-5) {
        fail(spec, step,
             "element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", the mean " +
                 std::to_string(wanted[i]));
      }
    }
  }

  [[noreturn]] static void fail(const std::string& spec, int step, const std::string& what) {
    throw std::runtime_error(spec + ", step " + std::to_string(step) + ": " + what);
  }

  Communicator& communicator_;
};

}  // namespace thinwire::testing
