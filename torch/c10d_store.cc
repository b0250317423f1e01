#include "torch/c10d_store.h"

namespace thinwire {

namespace {

std::vector<std::uint8_t> bytes_of(const std::string& value) {
  return {value.begin(), value.end()};
}

}  // namespace

void C10dFaultStore::set(const std::string& key, const std::string& value) {
  store_->set(key, bytes_of(value));
}

std::optional<std::string> C10dFaultStore::get(const std::string& key) {
  // c10d's get() waits for a key that is not there; keys are never deleted, so asking first is no race.
  if (!store_->check({key})) return std::nullopt;
  const std::vector<std::uint8_t> value = store_->get(key);
  return std::string(value.begin(), value.end());
}

std::string C10dFaultStore::set_if_absent(const std::string& key, const std::string& value) {
  // To c10d, an empty expectation is that of a key that is not there.
  const std::vector<std::uint8_t> standing = store_->compareSet(key, {}, bytes_of(value));
  return {standing.begin(), standing.end()};
}

}  // namespace thinwire
