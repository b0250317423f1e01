# Takes torch from a Python interpreter instead of find_package(Torch), whose CMake files want a CUDA toolkit where torch was built with
# one. Sets TORCH_INCLUDE_DIRS, TORCH_LIBRARIES, TORCH_CXX_FLAGS and THINWIRE_PYTHON_FOUND. The interpreter is Python_EXECUTABLE.
set(THINWIRE_PYTHON_FOUND OFF)
find_package(Python COMPONENTS Interpreter Development.Module)

set(thinwire_python_problem "")
if(NOT Python_Development.Module_FOUND)
  set(thinwire_python_problem "no Python with headers was found (Debian: python3-dev)")
else()
  # Elsewhere than in the source tree, whose folder torch/ would be imported instead.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "
import os, torch
print(torch.__version__, os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI), sep='\\n')
for name in ('COMPILER_TYPE', 'STDLIB', 'BUILD_ABI'):
    value = getattr(torch._C, f'_PYBIND11_{name}', None)
    if value is not None:
        print(f'PYBIND11_{name}=\\\"{value}\\\"')
"
    WORKING_DIRECTORY "${CMAKE_BINARY_DIR}"
    RESULT_VARIABLE status OUTPUT_VARIABLE answer ERROR_VARIABLE complaint)
  if(NOT status EQUAL 0)
    string(STRIP "${complaint}" complaint)
    set(thinwire_python_problem "${Python_EXECUTABLE} cannot import torch (Debian: python3-torch): ${complaint}")
  else()
    string(STRIP "${answer}" answer)
    string(REPLACE "\n" ";" answer "${answer}")
    list(GET answer 0 THINWIRE_PYTHON_TORCH_VERSION)
    list(GET answer 1 folder)
    list(GET answer 2 abi)
    set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=${abi}")
    # Classes of torch are found in Python only by a module whose pybind11 calls itself the same.
    set(THINWIRE_PYBIND11_DEFINITIONS ${answer})
    list(REMOVE_AT THINWIRE_PYBIND11_DEFINITIONS 0 1 2)
    set(TORCH_INCLUDE_DIRS "")
    if(EXISTS "${folder}/include/torch/version.h" OR EXISTS "${folder}/include/torch/headeronly/version.h")
      set(TORCH_INCLUDE_DIRS "${folder}/include;${folder}/include/torch/csrc/api/include")
    elseif(EXISTS /usr/include/torch/csrc/api/include)
      set(TORCH_INCLUDE_DIRS /usr/include/torch/csrc/api/include)
    endif()
    set(TORCH_LIBRARIES "")
    foreach(name torch torch_cpu c10 torch_python)
      find_library(THINWIRE_PYTHON_LIBRARY_${name} ${name} HINTS "${folder}/lib" NO_CACHE)
      if(NOT THINWIRE_PYTHON_LIBRARY_${name})
        set(thinwire_python_problem "torch ${THINWIRE_PYTHON_TORCH_VERSION} has no library called ${name} (Debian: libtorch-dev)")
      elseif(name STREQUAL torch_python)
        set(THINWIRE_TORCH_PYTHON_LIBRARY "${THINWIRE_PYTHON_LIBRARY_${name}}")
      else()
        list(APPEND TORCH_LIBRARIES "${THINWIRE_PYTHON_LIBRARY_${name}}")
      endif()
    endforeach()
    # torch from PyPI brings pybind11; Debian's leaves it to the package pybind11-dev.
    find_path(THINWIRE_PYBIND11_INCLUDE pybind11/pybind11.h HINTS ${TORCH_INCLUDE_DIRS} NO_CACHE)
    if(NOT THINWIRE_PYBIND11_INCLUDE)
      set(thinwire_python_problem "pybind11's headers were not found (Debian: pybind11-dev)")
    endif()
  endif()
endif()

if(thinwire_python_problem STREQUAL "")
  set(THINWIRE_PYTHON_FOUND ON)
  message(STATUS "PyTorch extension: ${Python_EXECUTABLE}, torch ${THINWIRE_PYTHON_TORCH_VERSION}")
elseif(SKBUILD)
  message(FATAL_ERROR "the PyTorch extension cannot be built: ${thinwire_python_problem}")
else()
  message(STATUS "no PyTorch extension: ${thinwire_python_problem}")
endif()
