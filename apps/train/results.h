#pragma once
// What a training run yields, as JSON (for scripts and plots) and as a table (for people).

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/train/options.h"

namespace thinwire::train {

/// One rank's sums over steps. Kept in checkpoints, so that a resumed run reports the whole of it.
struct Costs {
  std::uint64_t steps = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t formula_bytes = 0;    ///< Synchronizer::payload_bytes
  std::uint64_t bytes_sent_rows = 0;  ///< The part of bytes_sent that synchronized embeddings.
  double seconds_compress = 0;
  double seconds_communicate = 0;
  double seconds_decompress = 0;
  /// Elements of the embeddings' tables: all of them, those of this rank's rows, those of the mean's rows.
  double row_elements = 0;
  double row_elements_in = 0;
  double row_elements_out = 0;
  /// Of the mean, summed over the buckets and steps that the stage `guard` has measured, and their number.
  double relative_errors = 0;
  std::uint64_t measured = 0;

  Costs& operator+=(const Costs& other);

  /// body(name, pointer to member) for each of them.
  template <class Body>
  static void for_each_member(Body body) {
    body("steps", &Costs::steps);
    body("bytes_sent", &Costs::bytes_sent);
    body("bytes_received", &Costs::bytes_received);
    body("messages_sent", &Costs::messages_sent);
    body("formula_bytes", &Costs::formula_bytes);
    body("bytes_sent_rows", &Costs::bytes_sent_rows);
    body("row_elements", &Costs::row_elements);
    body("row_elements_in", &Costs::row_elements_in);
    body("row_elements_out", &Costs::row_elements_out);
    body("seconds_compress", &Costs::seconds_compress);
    body("seconds_communicate", &Costs::seconds_communicate);
    body("seconds_decompress", &Costs::seconds_decompress);
    body("relative_errors", &Costs::relative_errors);
    body("measured", &Costs::measured);
  }
};

struct EpochResult {
  std::uint64_t epoch = 0;  ///< From 1.
  std::uint64_t steps = 0;
  double loss = 0;           ///< Mean over the examples of all ranks, over steps that were not skipped.
  double test_accuracy = 0;  ///< Of a text, the share of words that were foretold.
  double test_loss = 0;      ///< Mean cross entropy of a test label, in nats.
  double perplexity = -1;    ///< exp(mean loss of a test word); -1: not a text.
  double seconds = 0;        ///< Wall-clock time, evaluation included.
  double seconds_step_median = -1;      ///< Of this epoch's steps, the slowest rank's.
  double wire_bytes = 0;                ///< Sent per step, this epoch's mean, by the rank that sent most.
  double wire_bytes_rows = 0;           ///< The same of the embeddings alone,
  double wire_bytes_dense = 0;          ///< and of all else.
  std::uint64_t wire_bytes_so_far = 0;  ///< Sent since the start of training, by the rank that sent most.

  /// body(name, pointer to member) for each of them.
  template <class Body>
  static void for_each_member(Body body) {
    body("epoch", &EpochResult::epoch);
    body("steps", &EpochResult::steps);
    body("loss", &EpochResult::loss);
    body("test_accuracy", &EpochResult::test_accuracy);
    body("test_loss", &EpochResult::test_loss);
    body("perplexity", &EpochResult::perplexity);
    body("seconds", &EpochResult::seconds);
    body("seconds_step_median", &EpochResult::seconds_step_median);
    body("wire_bytes", &EpochResult::wire_bytes);
    body("wire_bytes_rows", &EpochResult::wire_bytes_rows);
    body("wire_bytes_dense", &EpochResult::wire_bytes_dense);
    body("wire_bytes_so_far", &EpochResult::wire_bytes_so_far);
  }
};

struct RunResult {
  std::string label;  ///< The spec as it was typed.
  std::uint64_t seed = 1;
  std::string system;  ///< Names of its parts.
  std::string spec;    ///< With all options.
  std::uint64_t parameters = 0;
  std::vector<EpochResult> epochs;
  std::vector<Costs> costs;  ///< Of each rank.
  /// Of a training step, the slowest rank's median and minimum in this call; -1 if it ran none.
  double seconds_median = -1;
  double seconds_min = -1;
  std::uint64_t skipped_steps = 0;
  double residual_norm = -1;  ///< Of rank 0 after the last step, over all buckets; -1: unknown.
  double residual_deviation = -1;
  std::uint64_t model_hash = 0;
  bool ranks_agree = false;
  std::string explanation;  ///< What the systems decided by themselves, see Session::explain.
  std::string failure;      ///< Why training ended early; empty if it did not.
};

/// The name without options: "marsit", "block_top_k+s2_reducer", "rows=zen,dense=marsit".
std::string system_name(const std::string& spec);

/// "148.20"; of a diverged model "1.6e+303".
std::string perplexity_text(double perplexity);

/// What the model is measured by after its last epoch, as text: "0.9012", "148.20"; "-" if it has no epoch.
std::string measure_of(const RunResult& result);

/// One object of the JSON contract. Bytes are per rank and step.
nlohmann::ordered_json to_json(const RunResult& result, const Options& options);

/// What a training is called where people read of it: its spec, and its seed where there are several.
std::string title(const std::string& spec, const Options& options);

/// A row per system: what its seeds have on average, and their standard deviation where there are several.
/// Bytes are relative to the system called dense, else to the first.
std::string table(const std::vector<RunResult>& results);

}  // namespace thinwire::train
