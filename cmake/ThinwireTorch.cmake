# Finds libtorch quietly: without it the command line still builds, with the parts that need it left out.
# Debian's package carries no Gloo target of its own;
# libgloo-dev provides the headers that ProcessGroupGloo needs.
set(THINWIRE_TORCH_FOUND OFF)
if(THINWIRE_PYTHON_FOUND)
  set(THINWIRE_TORCH_FOUND ON)
else()
  find_package(Torch QUIET)
  if(TORCH_FOUND OR Torch_FOUND)
    set(THINWIRE_TORCH_FOUND ON)
  else()
    message(STATUS "libtorch not found: `thinwire train` and the gloo engine will say so (Debian: libtorch-dev)")
  endif()
endif()
# The extension is handed its process groups; only programs make their own.
if(THINWIRE_TORCH_FOUND AND (THINWIRE_APPS OR NOT THINWIRE_PYTHON_FOUND))
  find_path(THINWIRE_GLOO_INCLUDE gloo/rendezvous/store.h HINTS ${TORCH_INCLUDE_DIRS})
  if(THINWIRE_GLOO_INCLUDE)
    set(THINWIRE_GLOO_FOUND ON)
  endif()
endif()
