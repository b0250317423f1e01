#pragma once
// Under a sanitizer every access takes several times as long, and a size finds what a larger one would: tests
// take smaller ones there.

namespace thinwire {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace thinwire
