#pragma once
// A residual as a step changes it: what is read of the old one, and where the new one goes.

#include <type_traits>

#include "thinwire/span.h"

namespace thinwire {

/// `before` is read, `after` is written: the same elements, in the same memory or in such as does not
/// overlap. What is written to `after` is never read as `before`. Both may be empty.
struct ResidualSpan {
  ResidualSpan() = default;
  /// In place: from whatever a Span<float> comes from.
  template <class Values>
  requires std::is_convertible_v<Values&, Span<float>> ResidualSpan(Values&& both)  // NOLINT
      : after(both) {
    before = after;
  }
  ResidualSpan(Span<const float> from, Span<float> to)
      : before(from), after(to), large(to.size() >= kLarge && from.data() != to.data()) {}

  bool empty() const { return after.empty(); }
  std::size_t size() const { return after.size(); }
  bool in_place() const { return before.data() == after.data(); }
  /// As Span's: an empty one stays empty.
  ResidualSpan subspan(std::size_t offset, std::size_t count) const {
    ResidualSpan part = *this;
    part.before = before.subspan(offset, count);
    part.after = after.subspan(offset, count);
    return part;
  }
  ResidualSpan first(std::size_t count) const { return subspan(0, count); }

  /// Elements from which on what is written is out of the caches when it is read again.
  static constexpr std::size_t kLarge = std::size_t{1} << 20;

  Span<const float> before;
  Span<float> after;
  /// The whole lies apart and is large: then it is best written past the caches, which else read it first.
  bool large = false;
};

}  // namespace thinwire
