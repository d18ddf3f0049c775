# quire_test(<name> DEPS <module>...) builds tests/<name>.cc, which needs only the libraries that it
# names, and registers it with ctest: whole, or as SHARDS runs of a part each, for tests that take
# minutes under a sanitizer. TIMEOUT, in seconds of each, only ends what hangs.
find_package(GTest REQUIRED)

function(quire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;SHARDS" "DEPS" ${ARGN})
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/${name}.cc)
  target_compile_options(${name} PRIVATE ${QUIRE_WARNINGS})
  target_compile_definitions(${name} PRIVATE
    QUIRE_TEST_REFERENCE="${CMAKE_SOURCE_DIR}/tests/reference"
    QUIRE_TEST_SMOLLM2="${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_SHARDS)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    return()
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name}_${shard} COMMAND ${name})
    set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
      "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# What end-to-end tests of several parts use. The Python that has grpc is the system's, whatever
# comes first in PATH.
find_program(QUIRE_GRPC_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(NOT QUIRE_GRPC_PYTHON)
  set(QUIRE_GRPC_PYTHON ${Python3_EXECUTABLE})
endif()
set(stubs ${CMAKE_BINARY_DIR}/gen-python)
if(DEFINED ENV{QUIRE_SMOLLM2})
  set(smollm2 $ENV{QUIRE_SMOLLM2})
else()
  set(smollm2 ${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf)
endif()

# Each part lists its tests in a file of its own: cmake/tests-<part>.cmake.
file(GLOB parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/tests-*.cmake)
foreach(part ${parts})
  include(${part})
endforeach()

add_test(NAME layers_test
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_layers.py
          ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/layers.txt)
add_test(NAME hard_cases_test
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_hard_cases.py)
