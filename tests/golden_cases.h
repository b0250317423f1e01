#pragma once
// The golden record: what every system computes, as hashes. tests/golden_test.py holds each build against the
// record in tests/golden, so that code can be moved and rewritten without changing a bit of any result.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "session/contract_specs.h"
#include "thinwire/session.h"

namespace thinwire::testing {

class GoldenCases {
 public:
  explicit GoldenCases(Communicator& communicator) : communicator_(communicator) {}

  /// Rank 0's lines, one per system; nothing on the other ranks. Collective.
  std::vector<std::string> run() {
    std::vector<std::string> lines;
    for (const auto& spec : kContractSpecs) record(repeatable(spec), kSmall, lines);
    for (const char* spec :
         {"rows=zen:scheme=push_pull,dense=mc:momentum=0.9+top_k:ratio=0.2+zen:scheme=push_pull",
          "rows=half:feedback=on,dense=dgc:ratio=0.1:momentum=0.9+sparcml"}) {
      record(spec, kSmall, lines);
    }
    if (communicator_.engine() != "threads") return lines;
    // Several chunks to a message.
    for (const char* spec :
         {"dense", "half:feedback=on", "marsit:full_every=3", "signsgd:feedback=on", "cascading_sign"}) {
      record(spec, kLarge, lines);
    }
    return lines;
  }

 private:
  static constexpr std::size_t kSmall = 10'007;
  static constexpr std::size_t kLarge = 3'300'001;
  static constexpr std::size_t kRows = 500;
  static constexpr std::size_t kWidth = 12;
  static constexpr int kSteps = 5;

  /// FNV-1a over the bits of floats, 32 at a time.
  class Hash {
   public:
    void add(Span<const float> values) {
      for (const float value : values) {
        std::uint32_t word = 0;
        std::memcpy(&word, &value, sizeof word);
        add(word);
      }
    }
    void add(std::uint64_t word) {
      value_ = (value_ ^ word) * 0x100000001b3u;
      value_ ^= value_ >> 32;
    }
    std::uint64_t value() const { return value_; }

   private:
    std::uint64_t value_ = 0xcbf29ce484222325u;
  };

  /// Zen decides by the link that it measures; with a given one it always decides alike.
  static std::string repeatable(const std::string& spec) {
    const std::size_t at = spec.rfind("zen");
    const bool measures = at != std::string::npos && spec.find("scheme=") == std::string::npos &&
                          spec.find("gbit=") == std::string::npos;
    return measures ? spec + ":gbit=10:latency_us=20" : spec;
  }

  struct Input {
    std::vector<float> dense;
    std::vector<std::uint32_t> indices;
    std::vector<float> values;
  };

  /// Sums of bytes instead of the library's distributions, whose numbers differ between versions.
  static float draw(std::mt19937& random) {
    const auto bits = random();
    const auto sum = (bits & 255u) + (bits >> 8 & 255u) + (bits >> 16 & 255u) + (bits >> 24);
    return (static_cast<float>(sum) - 510.0f) * 0.0137931f;  // no number that half precision holds
  }

  Input input_of(std::size_t elements, int step) const {
    std::mt19937 random(static_cast<std::uint32_t>(1000 * step + communicator_.rank()));
    Input input;
    input.dense.assign(elements, 0.0f);
    // The second half is sparse.
    for (std::size_t i = 0; i < elements; ++i) {
      if (i < elements / 2 || random() % 7 == 0) input.dense[i] = draw(random);
    }
    for (int k = 0; k < 40; ++k) {
      input.indices.push_back(static_cast<std::uint32_t>(random() % kRows));
      for (std::size_t i = 0; i < kWidth; ++i) input.values.push_back(draw(random));
    }
    return input;
  }

  void record(const std::string& spec, std::size_t elements, std::vector<std::string>& lines) {
    const bool has_rows = elements == kSmall;
    std::string line = spec + " " + std::to_string(elements);
    try {
      Session session(spec, communicator_, {.seed = 11});
      session.add_bucket({{"matrix", elements / 80 * 40, elements / 80},
                          {"bias", 37},
                          {"rest", elements - elements / 80 * 40 - 37}});
      if (has_rows) session.add_rows("table", kRows, kWidth);
      session.start();
      for (const int step : {0, 1, 2, 3, 4}) one_step(session, elements, step, false);
      line += state_text(session, has_rows);
      if (communicator_.engine() == "threads") {
        // A step that some rank spoils, and one after it.
        one_step(session, elements, kSteps, true);
        one_step(session, elements, kSteps + 1, false);
        line += " then" + state_text(session, has_rows);
      }
    } catch (const std::invalid_argument& error) {  // not for a world of this size
      line += std::string(" refused: ") + error.what();
    }
    mean_ = {};
    bytes_ = 0;
    if (communicator_.rank() == 0) lines.push_back(line);
  }

  void one_step(Session& session, std::size_t elements, int step, bool spoilt) {
    Input input = input_of(elements, step);
    if (spoilt && communicator_.rank() == communicator_.size() - 1) {
      input.dense[elements / 3] = std::numeric_limits<float>::quiet_NaN();
      input.values[5] = std::numeric_limits<float>::infinity();
    }
    const StepReport& report = session.synchronize(0, input.dense);
    bytes_ += report.wire.sent_bytes;
    take(report, input.dense);
    if (elements == kSmall) {
      const RowSparse rows = session.synchronize_rows(
          1, {.row_indices = input.indices, .values = input.values, .rows = kRows, .width = kWidth});
      bytes_ += session.report(1).wire.sent_bytes;
      if (session.report(1).finite) {
        for (const std::uint32_t index : rows.row_indices) mean_.add(index);
      }
      take(session.report(1), rows.values);
    }
    session.next_step();
  }

  void take(const StepReport& report, Span<const float> mean) {
    mean_.add(std::uint64_t{report.finite});
    if (report.finite) mean_.add(mean);
  }

  /// Means of rank 0, after all ranks have compared theirs; residuals and bytes of all ranks.
  std::string state_text(Session& session, bool has_rows) {
    struct Own {
      std::uint64_t mean, residual, bytes;
    };
    Hash residual;
    residual.add(session.residual(0));
    if (has_rows) residual.add(session.residual(1));
    const Own own{mean_.value(), residual.value(), bytes_};
    std::vector<Own> all(static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather(as_bytes(Span<const Own>(&own, 1)), as_writable_bytes(Span<Own>(all)));
    Hash residuals;
    std::uint64_t bytes = 0;
    for (const Own& one : all) {
      if (one.mean != all[0].mean) throw std::runtime_error(session.spec() + ": ranks hold different means");
      residuals.add(one.residual);
      bytes += one.bytes;
    }
    char text[96];
    std::snprintf(text, sizeof text, " mean %016llx left %016llx bytes %llu",
                  static_cast<unsigned long long>(all[0].mean),
                  static_cast<unsigned long long>(residuals.value()), static_cast<unsigned long long>(bytes));
    return text;
  }

  Communicator& communicator_;
  Hash mean_;
  std::uint64_t bytes_ = 0;
};

}  // namespace thinwire::testing
