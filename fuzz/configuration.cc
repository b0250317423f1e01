// What the other ranks say of themselves at the start, made of any bytes: a session refuses with an error
// that can be read, or starts.

#include <stdexcept>

#include "fuzz/input.h"
#include "thinwire/session.h"

namespace {

using namespace thinwire;

/// Every message that arrives is what is left of the input, over and over. A length, in eight bytes, is
/// mostly below 4096: texts of megabytes take seconds.
class Fed final : public Communicator {
 public:
  Fed(int rank, std::string bytes, bool short_texts)
      : Communicator(rank, 3), bytes_(std::move(bytes)), short_texts_(short_texts) {
    if (bytes_.empty()) bytes_ = std::string(1, '\0');
  }
  std::string engine() const override { return "fed"; }

 protected:
  void* start_send(int, Tag, Span<const std::byte>) override { return &bytes_; }
  void* start_receive(int, Tag, Span<std::byte> bytes) override {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t count = std::min(bytes_.size() - at_, bytes.size() - done);
      std::memcpy(bytes.data() + done, bytes_.data() + at_, count);
      done += count;
      at_ = (at_ + count) % bytes_.size();
    }
    if (short_texts_ && bytes.size() == 8) {
      bytes[1] &= std::byte{0x0f};
      std::memset(bytes.data() + 2, 0, 6);
    }
    return &bytes_;
  }
  void finish(void*, int) override {}
  void abandon(void*) noexcept override {}

 private:
  std::string bytes_;
  bool short_texts_;
  std::size_t at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto choice = input.take<std::uint8_t>();
  Fed others(choice % 3, input.rest(), choice < 252);
  Session session("dense", others);
  session.add_bucket({{"a", 120, 12}, {"b", 80}});
  try {
    session.start();
  } catch (const std::runtime_error& error) {
    for (const char c : std::string(error.what())) fuzz::require(c >= ' ' && c <= '~');
  }
  return 0;
}
