quire_test(plan_shapes_test DEPS models)
quire_test(plan_test DEPS models)
quire_test(plan_transformers_test DEPS models)
if(QUIRE_SERVER)
  add_test(NAME e2e_plan_test
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/plan_test.py)
  set(smollm2 ${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf)
  if(DEFINED ENV{QUIRE_SMOLLM2})
    set(smollm2 $ENV{QUIRE_SMOLLM2})
  endif()
  set_tests_properties(e2e_plan_test PROPERTIES TIMEOUT 120 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_SMOLLM2=${smollm2}")
endif()
