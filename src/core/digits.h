#pragma once

namespace thinwire {

/// One of 0 to 9, whatever the locale.
inline bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

}  // namespace thinwire
