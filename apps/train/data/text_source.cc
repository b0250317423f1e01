#include "apps/train/data/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace thinwire::train {

namespace {

// Debian's `bible` numbers verses in its own format otherwise; -f is for programs.
constexpr const char* kBible = "bible -f gen1:1-rev22:21 2>/dev/null </dev/null";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// "Ge1:1", "1Sa12:3".
bool is_reference(std::string_view word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view verse = word.substr(colon + 1);
  std::string_view chapter = word.substr(0, colon);
  if (verse.empty() || !std::all_of(verse.begin(), verse.end(), is_digit)) return false;
  const std::size_t digits = chapter.find_last_not_of("0123456789");
  if (digits == std::string_view::npos || digits + 1 == chapter.size()) return false;
  std::string_view book = chapter.substr(0, digits + 1);
  if (is_digit(book.front())) book.remove_prefix(1);
  return !book.empty() && std::all_of(book.begin(), book.end(), is_letter);
}

/// Bytes of the well-formed UTF-8 sequence at the beginning of `text`; 0: there is none.
/// The Unicode standard, version 15, table 3-7.
std::size_t sequence_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(i < text.size() ? text[i] : 0); };
  const auto tail = [&](std::size_t from, std::size_t count) {
    for (std::size_t i = from; i < from + count; ++i) {
      if ((at(i) & 0xC0) != 0x80) return false;
    }
    return true;
  };
  const std::uint8_t first = at(0);
  const std::uint8_t second = at(1);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return tail(1, 1) ? 2 : 0;
  if (first < 0xF0) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second > 0x9F;
    return !overlong && !surrogate && tail(1, 2) ? 3 : 0;
  }
  if (first > 0xF4) return 0;
  const bool overlong = first == 0xF0 && second < 0x90;
  const bool beyond = first == 0xF4 && second > 0x8F;
  return !overlong && !beyond && tail(1, 3) ? 4 : 0;
}

/// What stands on the pipe, and the exit status of what wrote it; -1 if it did not run.
std::pair<std::string, int> output_of(const char* command) {
  std::FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return {"", -1};
  std::string output;
  std::array<char, 1 << 16> chunk;
  for (std::size_t got = 1; got > 0;) {
    got = std::fread(chunk.data(), 1, chunk.size(), pipe);
    output.append(chunk.data(), got);
  }
  return {std::move(output), ::pclose(pipe)};
}

}  // namespace

std::size_t first_untextual(const std::string& text) {
  const std::string_view view(text);
  std::size_t at = 0;
  while (at < view.size()) {
    const std::size_t length = sequence_length(view.substr(at));
    if (length == 0) return at;
    const auto byte = static_cast<std::uint8_t>(view[at]);
    const bool blank = byte >= '\t' && byte <= '\r';
    if (byte < ' ' && !blank) return at;
    at += length;
  }
  return at;
}

std::string read_text_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error(fmt::format("{} {}", path, what));
  };
  if (!stream) {
    refuse(fmt::format("cannot be opened ({}): give a UTF-8 text, --data text:FILE", std::strerror(errno)));
  }
  std::string text;
  try {
    text.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {
    stream.setstate(std::ios::badbit);  // a folder opens and then cannot be read
  }
  if (stream.bad()) refuse("cannot be read: is it a file?");
  if (text.empty()) refuse("is empty: give a text to learn from, --data text:FILE");
  if (const std::size_t at = first_untextual(text); at < text.size()) {
    refuse(fmt::format("is no UTF-8 text: byte {} is 0x{:02x}; convert it first, with iconv for instance", at,
                       static_cast<unsigned>(static_cast<std::uint8_t>(text[at]))));
  }
  return text;
}

std::string without_references(const std::string& verses) {
  std::istringstream lines(verses);
  std::string line;
  std::string text;
  std::size_t number = 0;
  while (std::getline(lines, line)) {
    ++number;
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos || !is_reference(std::string_view(line).substr(0, blank))) {
      throw std::runtime_error(
          fmt::format("line {} ('{}') begins with no reference such as Ge1:1", number, line.substr(0, 40)));
    }
    text.append(line, blank + 1);
    text += '\n';
  }
  if (text.empty()) throw std::runtime_error("there are no verses");
  return text;
}

std::string read_king_james() {
  constexpr const char* kRemedy =
      "install Debian's bible-kjv and bible-kjv-text, or give a text of your own: --data text:FILE";
  const auto [verses, status] = output_of(kBible);
  if (status != 0 || verses.empty()) {
    throw std::runtime_error(fmt::format(
        "--data text reads the King James Bible from `bible`, which is not there or prints nothing: {}",
        kRemedy));
  }
  try {
    return without_references(verses);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        fmt::format("what `bible` prints is not understood: {}; {}", error.what(), kRemedy));
  }
}

}  // namespace thinwire::train
