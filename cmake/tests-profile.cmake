# Profiles, machine peaks, and attention kernels from shared objects.
quire_test(op_profile_test DEPS kernels)
quire_test(machine_peaks_test DEPS kernels)
quire_test(ops_run_test DEPS bench)

# The libraries are plain C, built as a user would: one that is right, and one for each mistake.
enable_language(C)
set(plugin_folder ${CMAKE_BINARY_DIR}/test-plugins)
function(quire_test_plugin name)
  add_library(${name} MODULE ${CMAKE_SOURCE_DIR}/tests/plugins/plain_attention.c)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
  target_compile_definitions(${name} PRIVATE ${ARGN})
  target_link_libraries(${name} PRIVATE m)
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${plugin_folder}
                        C_STANDARD 99 C_EXTENSIONS OFF)
  add_dependencies(attention_library_test ${name})
endfunction()
quire_test(attention_library_test DEPS models)
target_compile_definitions(attention_library_test PRIVATE
  QUIRE_TEST_PLUGINS="${plugin_folder}")
quire_test_plugin(plain)
quire_test_plugin(bad_version DEFECT_VERSION)
quire_test_plugin(bad_size DEFECT_SIZE)
quire_test_plugin(bad_null DEFECT_NULL)
quire_test_plugin(bad_symbol DEFECT_SYMBOL)
quire_test_plugin(bad_nothing DEFECT_NOTHING)
quire_test_plugin(bad_taken PLUGIN_NAME="flash")
quire_test_plugin(bad_name "PLUGIN_NAME=\"my kernel\"")

if(QUIRE_SERVER)
  add_test(NAME e2e_profile_test
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/profile_test.py)
  set_tests_properties(e2e_profile_test PROPERTIES TIMEOUT 300 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_PLUGINS=${plugin_folder}")
endif()
