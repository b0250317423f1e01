# Where code for CUDA devices comes from. THINWIRE_CUDA=ON: from nvcc. EMULATED: the same sources as ordinary
# C++, run on the CPU by src/cuda/emulation.h. OFF: memory of a device is refused with a message.
#
# thinwire_cuda_sources(NAME FILES...): adds device code to the library thinwire_NAME.

string(TOUPPER "${THINWIRE_CUDA}" THINWIRE_CUDA_MODE)
if(NOT THINWIRE_CUDA_MODE MATCHES "^(ON|OFF|EMULATED|TRUE|FALSE|YES|NO|1|0)$")
  message(FATAL_ERROR "THINWIRE_CUDA=${THINWIRE_CUDA}: ON, OFF or EMULATED is needed")
endif()
if(THINWIRE_CUDA_MODE STREQUAL "EMULATED")
  set(THINWIRE_CUDA_DEFINITIONS THINWIRE_HAS_CUDA THINWIRE_CUDA_EMULATED)
elseif(THINWIRE_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake before 3.26 does not know that nvcc does.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  find_package(CUDAToolkit REQUIRED)
  set(THINWIRE_CUDA_DEFINITIONS THINWIRE_HAS_CUDA)
endif()

function(thinwire_cuda_sources name)
  if(NOT THINWIRE_CUDA)
    return()
  endif()
  target_sources(thinwire_${name} PRIVATE ${ARGN})
  if(THINWIRE_CUDA_MODE STREQUAL "EMULATED")
    # As nvcc is told below: products and sums are rounded one by one, as on the host.
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
      COMPILE_OPTIONS "-xc++;-ffp-contract=off;-Wno-unknown-pragmas;-Wno-psabi")
  else()
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "--expt-relaxed-constexpr;-fmad=false")
  endif()
endfunction()
