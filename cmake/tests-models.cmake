quire_test(golden_models_test DEPS models)
# The real model; too slow under the sanitizers, whose builds leave the server out.
if(QUIRE_SERVER)
  quire_test(smollm2_test DEPS models TIMEOUT 300)
endif()
quire_test(metamorphic_test DEPS models TIMEOUT 300)
if(QUIRE_SERVER)
  target_compile_definitions(metamorphic_test PRIVATE QUIRE_TEST_REAL_MODEL)
endif()
