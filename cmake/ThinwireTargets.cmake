# thinwire_library(NAME SOURCES ... LINK ... [PRIVATE_LINK ...]): one folder as one static library, called
# thinwire_NAME here and thinwire::NAME when installed.
# thinwire_test(NAME SOURCES ... LINK ... [SHARDS N]): one GoogleTest program.
# With SHARDS its tests, which mostly wait, are run by N processes, a part by each.

set(THINWIRE_LIBRARIES "" CACHE INTERNAL "")

function(thinwire_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  # GCC 12 sees overlapping copies inside std::string's operator+ that are not there (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(THINWIRE_WERROR)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endfunction()

function(thinwire_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(target thinwire_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(thinwire::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK})
  thinwire_warnings(${target})
  set_property(CACHE THINWIRE_LIBRARIES APPEND PROPERTY VALUE ${target})
endfunction()

function(thinwire_test name)
  if(NOT THINWIRE_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "SHARDS" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LINK} rapidcheck GTest::gtest_main)
  thinwire_warnings(${name})
  # A third less to compile; the libraries that they test are compiled as for users.
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=[a-z,]*undefined")
    # Another third. Inline functions of the libraries that tests call, too,
    # are then checked for addresses only.
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  if(NOT TARGET unit_tests)
    add_custom_target(unit_tests)  # what the sanitizers' build takes: all but those labelled unsanitized
  endif()
  if(NOT "unsanitized" IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  if(NOT arg_SHARDS)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS "${arg_LABELS}")
    return()
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name}_${shard} COMMAND ${name})
    set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT 1200 LABELS "${arg_LABELS}"
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# thinwire_unsanitized(NAME PATTERNS...): tests of a program that the sanitizers' builds leave out, since they
# repeat what others do: distributions, and long trainings.
function(thinwire_unsanitized name)
  if(THINWIRE_TESTS AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    string(REPLACE ";" ":" patterns "${ARGN}")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-${patterns}")
  endif()
endfunction()

# thinwire_device_test(NAME PROGRAM ARGUMENTS...): what of a test program needs a CUDA device;
# skipped where there is none.
function(thinwire_device_test name program)
  if(THINWIRE_TESTS AND THINWIRE_CUDA AND NOT THINWIRE_CUDA_MODE STREQUAL "EMULATED")
    add_test(NAME ${name} COMMAND ${program} ${ARGN})
    set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS cuda ENVIRONMENT THINWIRE_TEST_EXECUTORS=cuda
      SKIP_REGULAR_EXPRESSION "no CUDA device")
  endif()
endfunction()

function(thinwire_install)
  include(CMakePackageConfigHelpers)
  install(TARGETS thinwire ${THINWIRE_LIBRARIES} EXPORT thinwireTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/thinwire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT thinwireTargets NAMESPACE thinwire:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
  set(THINWIRE_HAS_MPI ${MPI_CXX_FOUND})
  set(THINWIRE_NEEDS_CUDA ${CUDAToolkit_FOUND})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/thinwireConfig.cmake.in
    ${PROJECT_BINARY_DIR}/thinwireConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/thinwireConfig.cmake ${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
endfunction()
