quire_test(workloads_test DEPS bench)
quire_test(bench_tools_test DEPS bench)
target_compile_definitions(bench_tools_test PRIVATE QUIRE_TEST_PYTHON="${Python3_EXECUTABLE}")
quire_test(context_cost_test DEPS bench)
quire_test(machine_text_test DEPS kernels)
add_test(NAME sdpa_script_test
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/sdpa_script_test.py)
