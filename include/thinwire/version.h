#pragma once

namespace thinwire {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace thinwire
