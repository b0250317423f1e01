#include "apps/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace thinwire::train {

namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::size_t kWidestBar = 30;
constexpr std::size_t kNarrowestBar = 5;  // below that it says less than the numbers beside it

std::string bar(std::uint64_t done, std::uint64_t all, std::size_t width) {
  const std::size_t filled = all == 0 ? width : static_cast<std::size_t>(done * width / all);
  return std::string(filled, '#') + std::string(width - filled, '.');
}

/// Of the terminal; 80 if it does not say.
std::size_t columns_of(std::FILE* stream) {
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string duration(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace

Progress::Progress(std::FILE* stream) : stream_(stream), live_(isatty(fileno(stream)) == 1) {}

Progress::~Progress() {
  erase();
}

void Progress::begin(std::string label, std::uint64_t epochs, std::uint64_t steps_per_epoch,
                     std::uint64_t done_steps) {
  label_ = std::move(label);
  epochs_ = epochs;
  steps_per_epoch_ = std::max<std::uint64_t>(1, steps_per_epoch);
  first_step_ = done_steps;
  steps_ = done_steps;
  measured_.clear();
  begun_ = Clock::now();
  last_drawn_ = {};
}

void Progress::step(double loss, std::uint64_t bytes_sent) {
  ++steps_;
  if (live_ && Clock::now() - last_drawn_ >= kRedraw) draw(loss, bytes_sent);
}

void Progress::draw(double loss, std::uint64_t bytes_sent) {
  const std::uint64_t all = epochs_ * steps_per_epoch_;
  const std::uint64_t done = std::max<std::uint64_t>(1, steps_ - first_step_);
  const double elapsed = std::chrono::duration<double>(Clock::now() - begun_).count();
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(all - std::min(all, steps_));
  const std::string numbers = fmt::format("epoch {}/{} step {}/{}, loss {:.4f}{}, {}/worker, {} left",
                                          std::min(epochs_, (steps_ - 1) / steps_per_epoch_ + 1), epochs_,
                                          (steps_ - 1) % steps_per_epoch_ + 1, steps_per_epoch_, loss,
                                          measured_, megabytes(bytes_sent), duration(left));
  // The bar takes the room that is left; brackets and blanks take four.
  const std::size_t room = columns_of(stream_);
  const std::size_t taken = label_.size() + numbers.size() + 4;
  const std::size_t width = room > taken ? std::min(kWidestBar, room - taken - 1) : 0;
  const std::string picture = width < kNarrowestBar ? "" : fmt::format("[{}] ", bar(steps_, all, width));
  // Wrapping is off while the line is drawn, for a wrapped line could not be redrawn; "erase to the end of
  // the line" removes the tail of an older, longer one.
  fmt::print(stream_, "\r\x1b[?7l{} {}{}\x1b[K\x1b[?7h", label_, picture, numbers);
  std::fflush(stream_);
  drawn_ = true;
  last_drawn_ = Clock::now();
}

void Progress::epoch(const EpochResult& result) {
  // Not a number, of a text on which the training has diverged, is no accuracy either.
  const std::string measure = result.perplexity < 0 ? fmt::format("accuracy {:.4f}", result.test_accuracy)
                                                    : "perplexity " + perplexity_text(result.perplexity);
  measured_ = ", " + measure;
  // On a terminal the line is redrawn all the time; the last epoch's stays to be read.
  if (live_ && result.epoch != epochs_) return;
  note(fmt::format("{}: epoch {}/{}, loss {:.4f}, test {}, {} sent per worker, {:.1f} s", label_,
                   result.epoch, epochs_, result.loss, measure, megabytes(result.wire_bytes_so_far),
                   result.seconds));
}

void Progress::note(const std::string& text) {
  erase();
  fmt::print(stream_, "{}\n", text);
  std::fflush(stream_);
}

void Progress::erase() {
  if (!drawn_) return;
  fmt::print(stream_, "\r\x1b[K");
  std::fflush(stream_);
  drawn_ = false;
}

}  // namespace thinwire::train
