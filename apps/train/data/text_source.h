#pragma once
// Where texts come from: a file, or Debian's King James Bible.

#include <string>

namespace thinwire::train {

/// The whole of a UTF-8 file. Throws std::runtime_error naming the file if it cannot be read, is empty, or is
/// no UTF-8 text, with the byte where that shows.
std::string read_text_file(const std::string& path);

/// What `bible -f gen1:1-rev22:21` of Debian's bible-kjv prints, a verse per line, without the references.
/// Throws std::runtime_error naming the packages to install if it prints anything else.
std::string read_king_james();

/// Byte offset of the first byte that belongs to no UTF-8 text (a malformed sequence, or a control character
/// that no text has); text.size() if all do.
std::size_t first_untextual(const std::string& text);

/// Removes each line's first word, the reference of its verse, if it begins with a book's abbreviation and
/// ends with "chapter:verse". Throws std::runtime_error for a line that has none, or a text without lines.
std::string without_references(const std::string& verses);

}  // namespace thinwire::train
