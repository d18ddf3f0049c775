quire_test(step_cost_test DEPS bench)
quire_test(trace_test DEPS bench)
quire_test(simulation_test DEPS bench)
quire_test(real_run_test DEPS bench)
if(QUIRE_SERVER)
  add_test(NAME e2e_simulate_test
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/simulate_test.py)
  set_tests_properties(e2e_simulate_test PROPERTIES TIMEOUT 120 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>")
endif()
