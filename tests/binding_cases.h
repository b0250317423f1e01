#pragma once
// Ranks that do not synchronize the same thing, with every system over a real engine: every rank gets an
// error that says so, and none a mean.

#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "session/contract_specs.h"
#include "thinwire/errors.h"
#include "thinwire/session.h"

namespace thinwire::testing {

class BindingCases {
 public:
  /// At least two ranks.
  explicit BindingCases(Communicator& communicator) : communicator_(communicator) {}

  void run() {
    for (const auto& spec : kContractSpecs) run(spec);
  }

  void run(const std::string& spec) {
    try {
      another_order(spec);
      rows_in_another_order(spec);
      one_leaves_out_a_step(spec);
      declared_in_another_order(spec);
    } catch (const std::exception& error) {
      throw std::runtime_error(spec + ": " + error.what());
    }
  }

 private:
  static constexpr std::size_t kElements = 300;

  bool odd_one_out() const { return communicator_.rank() == communicator_.size() - 1; }

  /// body must end with an error that has `wanted` in it, and names the odd rank, or one of two.
  template <class Error>
  void require_refusal(const std::string& wanted, const std::function<void()>& body) const {
    try {
      body();
    } catch (const Error& error) {
      const std::string text = error.what();
      const std::string culprit = "rank " + std::to_string(communicator_.size() - 1);
      if (text.find(wanted) != std::string::npos && text.find(culprit) != std::string::npos) return;
      throw std::runtime_error("wanted '" + wanted + "' and '" + culprit + "', got '" + text + "'");
    }
    throw std::runtime_error("rank " + std::to_string(communicator_.rank()) + " got a mean, wanted '" +
                             wanted + "'");
  }

  std::vector<float> gradient_of(BucketId bucket) const {
    std::vector<float> gradient(kElements);
    std::iota(gradient.begin(), gradient.end(), static_cast<float>(100 * bucket) + 0.5f);
    return gradient;
  }

  void another_order(const std::string& spec) {
    Session session(spec, communicator_, {.seed = 3});
    session.add_bucket({{"one", kElements}});
    session.add_bucket({{"two", kElements}});
    session.start();
    const BucketId first = odd_one_out() ? 1 : 0;
    require_refusal<CommError>("bucket 1 of step 0 ('two', dense, 300 elements)", [&] {
      auto gradient = gradient_of(first);
      session.synchronize(first, gradient);
    });
  }

  void rows_in_another_order(const std::string& spec) {
    Session session(spec, communicator_, {.seed = 3});
    session.add_rows("one", kElements / 3, 3);
    session.add_rows("two", kElements / 3, 3);
    session.start();
    const BucketId first = odd_one_out() ? 1 : 0;
    require_refusal<CommError>("bucket 1 of step 0 ('two', rows, 300 elements)", [&] {
      const std::vector<std::uint32_t> indices = {1, 7};
      const std::vector<float> values(6, 1.0f);
      session.synchronize_rows(first,
                               {.row_indices = indices, .values = values, .rows = kElements / 3, .width = 3});
    });
  }

  void one_leaves_out_a_step(const std::string& spec) {
    Session session(spec, communicator_, {.seed = 3});
    session.add_bucket({{"one", kElements}});
    for (int step = 0; step < 3; ++step) {
      auto gradient = gradient_of(0);
      if (step == 1 && odd_one_out()) {
        session.next_step();  // without it
        continue;
      }
      if (step == 0) {
        session.synchronize(0, gradient);
        session.next_step();
        continue;
      }
      require_refusal<CommError>("bucket 0 of step 2 ('one', dense, 300 elements)",
                                 [&] { session.synchronize(0, gradient); });
      return;
    }
  }

  void declared_in_another_order(const std::string& spec) {
    Session session(spec, communicator_, {.seed = 3});
    const bool odd = odd_one_out();
    session.add_bucket({{"front", 2}, {odd ? "two" : "one", kElements}, {odd ? "one" : "two", kElements}});
    require_refusal<std::runtime_error>("differs from rank 0 in parameter names (two one against one two)",
                                        [&] { session.start(); });
  }

  Communicator& communicator_;
};

}  // namespace thinwire::testing
