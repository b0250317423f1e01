// What ranks say of a rendezvous store that is gone, and how often they ask it.
#include "torch/c10d_store.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace thinwire {
namespace {

/// Fails with these words.
class FailingStore final : public ::c10d::HashStore {
 public:
  explicit FailingStore(std::string words) : words_(std::move(words)) {}
  std::int64_t add(const std::string&, std::int64_t) override {
    ++asked;
    throw std::runtime_error(words_);
  }
  int asked = 0;

 private:
  std::string words_;
};

/// What the second of two calls says, and how many of them came to the store.
std::pair<std::string, int> said_twice(const std::string& words, int store_host) {
  const auto failing = c10::make_intrusive<FailingStore>(words);
  C10dFaultStore store(failing, store_host);
  std::string said;
  for (int call = 0; call < 2; ++call) {
    said.clear();
    try {
      store.add("key", 1);
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
  }
  return {said, failing->asked};
}

TEST(C10dFaultStore, AStoreWhoseConnectionIsClosedOrWhoseAnswerIsLateIsNotAskedAgain) {
  for (const std::string words : {"Broken pipe", "recvBytes: Connection reset by peer", "Socket Timeout",
                                  "failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
                                  "server shutdown or crash?"}) {
    const auto [said, asked] = said_twice(words + "\nframe 0", 0);
    EXPECT_EQ(said,
              "the rendezvous store does not answer: rank 0, whose process serves it, is gone or silent (" +
                  words + ")");
    EXPECT_EQ(asked, 1);
  }
}

TEST(C10dFaultStore, AStoreThatRefusesARequestIsAskedAgain) {
  const auto [said, asked] = said_twice("not a number", -1);
  EXPECT_EQ(
      said,
      "the rendezvous store does not answer: the agent that serves it is gone or silent (not a number)");
  EXPECT_EQ(asked, 2);
}

/// Answers nothing while its process is frozen.
class SilentStore final : public ::c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<std::uint8_t>&) override { thawed_.get_future().wait(); }
  void thaw() { thawed_.set_value(); }

 private:
  std::promise<void> thawed_;
};

TEST(AnsweredClient, AStoreThatAnswersHoldsNobody) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  const auto client = answered_client(store, "hello", std::chrono::seconds(600));
  EXPECT_TRUE(client->check({"hello"}));
  client->set("key", std::vector<std::uint8_t>{7});
  EXPECT_EQ(store->get("key"), std::vector<std::uint8_t>{7});
}

TEST(AnsweredClient, AStoreThatDoesNotAnswerIsAnErrorAtTheLimit) {
  const auto store = c10::make_intrusive<SilentStore>();
  try {
    answered_client(store, "hello", std::chrono::milliseconds(200));
    ADD_FAILURE() << "returned";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "no answer within 0.2 s");
  }
  store->thaw();
}

}  // namespace
}  // namespace thinwire
