# XGrammar as a static library, for sampling/ alone. Its source is fetched and checked against its
# hash when it is not there; on a machine without network copy build/third_party/ from another one.
set(QUIRE_THIRD_PARTY ${CMAKE_SOURCE_DIR}/build/third_party CACHE PATH "Sources of third parties")
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env QUIRE_THIRD_PARTY=${QUIRE_THIRD_PARTY}
          ${CMAKE_SOURCE_DIR}/deploy/fetch-xgrammar.sh
  OUTPUT_VARIABLE xgrammar_root OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "XGrammar's source is missing and could not be fetched: see the lines above. "
                      "Without network copy build/third_party/ from a machine that has it.")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${CMAKE_SOURCE_DIR}/deploy/third-party-requirements.txt
             ${CMAKE_SOURCE_DIR}/deploy/xgrammar-fixes.py)

file(GLOB_RECURSE xgrammar_sources ${xgrammar_root}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${xgrammar_root}/include
  ${xgrammar_root}/3rdparty/dlpack/include PRIVATE ${xgrammar_root}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0
  XGRAMMAR_ENABLE_INTERNAL_CHECK=0
  # Its errors and warnings go through sampling/grammar_budget.cc, none to stderr.
  XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(xgrammar PRIVATE -w)
if(CMAKE_CXX_FLAGS MATCHES "fsanitize")
  target_compile_options(xgrammar PRIVATE -O1)
else()
  target_compile_options(xgrammar PRIVATE -O2)
endif()
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 EXPORT_COMPILE_COMMANDS OFF)

# What it allocates is counted and bounded, see sampling/grammar_budget.h: its calls of operator new
# and delete are given other names in the finished library.
if(NOT CMAKE_OBJCOPY)
  message(FATAL_ERROR "objcopy (binutils) is needed to build XGrammar")
endif()
add_custom_command(TARGET xgrammar POST_BUILD COMMAND ${CMAKE_OBJCOPY}
  --redefine-sym _Znwm=QuireBudgetNew --redefine-sym _Znam=QuireBudgetNewArray
  --redefine-sym _ZdlPv=QuireBudgetDelete --redefine-sym _ZdaPv=QuireBudgetDeleteArray
  --redefine-sym _ZdlPvm=QuireBudgetDeleteSized --redefine-sym _ZdaPvm=QuireBudgetDeleteSizedArray
  $<TARGET_FILE:xgrammar> VERBATIM)

target_link_libraries(sampling PRIVATE xgrammar)
# And back: its log and its allocations end in sampling/. Static libraries may form a circle.
target_link_libraries(xgrammar PRIVATE sampling)
# The one file that needs a header which XGrammar does not install.
set_source_files_properties(${CMAKE_SOURCE_DIR}/sampling/grammar_log.cc PROPERTIES
  INCLUDE_DIRECTORIES ${xgrammar_root}/cpp
  COMPILE_DEFINITIONS "XGRAMMAR_LOG_CUSTOMIZE=1;XGRAMMAR_ENABLE_CPPTRACE=0")
