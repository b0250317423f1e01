#pragma once
// How kernels say what they do with an operand. Either way no other pointer of the kernel leads to the same
// memory, unless both only read it: compilers then need not load a value twice.

namespace thinwire {

/// Nothing writes there while the kernel runs.
template <class T>
using Reads = const T* __restrict__;

/// The kernel may read there, too.
template <class T>
using Writes = T* __restrict__;

}  // namespace thinwire
