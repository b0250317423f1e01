#include "torch/c10d_store.h"

namespace thinwire {

void C10dFaultStore::set(const std::string& key, const std::string& value) {
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::optional<std::string> C10dFaultStore::get(const std::string& key) {
  // c10d's get() waits for a key that is not there; keys are never deleted, so asking first is no race.
  if (!store_->check({key})) return std::nullopt;
  const std::vector<std::uint8_t> value = store_->get(key);
  return std::string(value.begin(), value.end());
}

}  // namespace thinwire
