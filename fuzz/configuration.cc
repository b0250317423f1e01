// What the other ranks say of themselves at the start, made of any bytes: a session refuses with an error that
// can be read, or starts.

#include <stdexcept>

#include "fuzz/input.h"
#include "thinwire/session.h"

namespace {

using namespace thinwire;

/// Every message that arrives is what is left of the input, over and over.
class Fed final : public Communicator {
 public:
  Fed(int rank, std::string bytes) : Communicator(rank, 3), bytes_(std::move(bytes)) {
    if (bytes_.empty()) bytes_ = std::string(1, '\0');
  }
  std::string engine() const override { return "fed"; }

 protected:
  void* start_send(int, Tag, Span<const std::byte>) override { return &bytes_; }
  void* start_receive(int, Tag, Span<std::byte> bytes) override {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(bytes_[at_++ % bytes_.size()]);
    return &bytes_;
  }
  void finish(void*, int) override {}
  void abandon(void*) noexcept override {}

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const int rank = input.take<std::uint8_t>() % 3;
  Fed others(rank, input.rest());
  Session session("dense", others);
  session.add_bucket({{"a", 120, 12}, {"b", 80}});
  try {
    session.start();
  } catch (const std::runtime_error& error) {
    for (const char c : std::string(error.what())) fuzz::require(c >= ' ' && c <= '~');
  }
  return 0;
}
