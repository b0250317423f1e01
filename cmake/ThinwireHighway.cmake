# Highway (hwy::hwy), whose kernels choose their instruction set at run time. A source distribution carries
# its sources in highway/ and builds them in; a checkout takes the installed library.
if(SKBUILD AND EXISTS "${PROJECT_SOURCE_DIR}/highway/hwy/highway.h")
  add_library(thinwire_highway STATIC highway/hwy/targets.cc highway/hwy/per_target.cc)
  add_library(hwy::hwy ALIAS thinwire_highway)
  target_include_directories(thinwire_highway SYSTEM PUBLIC highway)
else()
  find_package(hwy QUIET)
  if(NOT hwy_FOUND)
    message(FATAL_ERROR "Highway was not found (Debian: libhwy-dev); source distributions made by scripts/wheels bring it along")
  endif()
endif()
# Processors with SSSE3 and without SSE4.1 are of 2006: they run what is compiled for SSE2.
if(NOT CMAKE_CXX_FLAGS MATCHES "-DHWY_")
  add_compile_definitions(HWY_DISABLED_TARGETS=HWY_SSSE3)
endif()
