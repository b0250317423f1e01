#include "torch/c10d_store.h"

#include <exception>
#include <stdexcept>

namespace thinwire {

namespace {

std::vector<std::uint8_t> bytes_of(const std::string& value) {
  return {value.begin(), value.end()};
}

}  // namespace

std::string store_server(int store_host) {
  if (store_host < 0) return "the agent that serves it";
  return "rank " + std::to_string(store_host) + ", whose process serves it,";
}

template <class Run>
auto C10dFaultStore::ask(Run run) const {
  try {
    return run();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw std::runtime_error("the rendezvous store does not answer: " + store_server(store_host_) +
                             " is gone or silent (" + text.substr(0, text.find('\n')) + ")");
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
