#include "torch/c10d_store.h"

#include <algorithm>
#include <array>
#include <exception>
#include <stdexcept>
#include <string_view>

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

}  // namespace

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
