#pragma once
// Words for a number on the command line that is none. CLI11's are "Could not convert" and "not in range".

#include <CLI/CLI.hpp>
#include <string>

namespace thinwire::apps {

/// Names the option and the value that `error` is about and says what to give instead, such as
/// "--epochs=one: a whole number is needed, such as 3". Of all options of the command, by their types. Empty
/// where every value is what its option takes, so that the error is about something else.
std::string wrong_number(const CLI::App& command, const CLI::ParseError& error);

}  // namespace thinwire::apps
