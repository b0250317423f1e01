#pragma once
// How the options bits and block are read, wherever floats travel in codes (exchange/block_average.h).

#include "exchange/block_average.h"
#include "thinwire/registry.h"

namespace thinwire {

/// Throws std::invalid_argument where bits is not 2 to 8, or block no multiple of 128.
BlockCodes read_block_codes(const Options& options);

}  // namespace thinwire
