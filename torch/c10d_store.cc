#include "torch/c10d_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "torch/kept_groups.h"

namespace thinwire {

namespace {

std::vector<std::uint8_t> bytes_of(const std::string& value) {
  return {value.begin(), value.end()};
}

/// In the words of any version of torch. A client of its store does not connect again, and takes a late
/// answer for that to its next request.
bool ends_client(const std::string& text) {
  constexpr std::array<std::string_view, 6> kWords{
      "Broken pipe", "Connection reset", "Connection closed", "Connection was likely closed",
      "imeout",      "imed out"};
  return std::ranges::any_of(kWords, [&](auto words) { return text.find(words) != std::string::npos; });
}

/// A client of the same store with a connection of its own, where it has connections.
template <class Store>
c10::intrusive_ptr<Store> client_of(const c10::intrusive_ptr<Store>& store) {
  if constexpr (requires { store->clone(); }) {
    return store->clone();
  } else {
    c10::intrusive_ptr<Store> base = store;
    while (const auto* prefixed = dynamic_cast<::c10d::PrefixStore*>(base.get())) {
      base = const_cast<::c10d::PrefixStore*>(prefixed)->getUnderlyingStore();
    }
    const auto* server = dynamic_cast<::c10d::TCPStore*>(base.get());
    if (server == nullptr) return store;
    ::c10d::TCPStoreOptions options;
    options.port = server->getPort();
    options.waitWorkers = false;
    return c10::make_intrusive<::c10d::TCPStore>(server->getHost(), options);
  }
}

}  // namespace

c10::intrusive_ptr<::c10d::Store> answered_client(c10::intrusive_ptr<::c10d::Store> store,
                                                  const std::string& key,
                                                  std::chrono::duration<double> limit) {
  struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    bool came = false;
    c10::intrusive_ptr<::c10d::Store> client;
    std::string error;
  };
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, store = std::move(store), key, limit] {
    c10::intrusive_ptr<::c10d::Store> client;
    std::string error;
    try {
      const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(limit);
      client = client_of(store);
      client->setTimeout(timeout);
      client->set(key, std::vector<std::uint8_t>{});
      client->wait({key}, timeout);
    } catch (const std::exception& raised) {
      error = raised.what();
    }
    const std::lock_guard lock(answer->mutex);
    answer->came = true;
    answer->client = std::move(client);
    answer->error = std::move(error);
    answer->changed.notify_all();
  }).detach();
  std::unique_lock lock(answer->mutex);
  if (!answer->changed.wait_for(lock, limit, [&] { return answer->came; })) {
    leave_threads_behind();
    std::ostringstream text;
    text << "no answer within " << limit.count() << " s";
    throw std::runtime_error(text.str());
  }
  if (!answer->error.empty()) throw std::runtime_error(answer->error);
  return std::move(answer->client);
}

std::string store_server(int store_host) {
  if (store_host < 0) return "the agent that serves it";
  return "rank " + std::to_string(store_host) + ", whose process serves it,";
}

template <class Run>
auto C10dFaultStore::ask(Run run) {
  {
    const std::lock_guard lock(mutex_);
    if (!end_.empty()) throw std::runtime_error(end_);
  }
  try {
    return run();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string words = "the rendezvous store does not answer: " + store_server(store_host_) +
                              " is gone or silent (" + text.substr(0, text.find('\n')) + ")";
    const std::lock_guard lock(mutex_);
    if (ends_client(text)) end_ = words;
    throw std::runtime_error(words);
  }
}

void C10dFaultStore::set(const std::string& key, const std::string& value) {
  ask([&] { store_->set(key, bytes_of(value)); });
}

std::optional<std::string> C10dFaultStore::get(const std::string& key) {
  return ask([&]() -> std::optional<std::string> {
    // c10d's get() waits for a key that is not there; keys are never deleted, so asking first is no race.
    if (!store_->check({key})) return std::nullopt;
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  });
}

std::string C10dFaultStore::set_if_absent(const std::string& key, const std::string& value) {
  return ask([&]() -> std::string {
    // To c10d, an empty expectation is that of a key that is not there.
    const std::vector<std::uint8_t> standing = store_->compareSet(key, {}, bytes_of(value));
    return {standing.begin(), standing.end()};
  });
}

std::int64_t C10dFaultStore::add(const std::string& key, std::int64_t number) {
  return ask([&] { return store_->add(key, number); });
}

}  // namespace thinwire
