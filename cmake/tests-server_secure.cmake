# Who may call, and metrics: pure logic, the daemon over a scripted executor, and the real daemon.
if(QUIRE_SERVER)
  quire_test(access_test DEPS server)
  quire_test(metrics_test DEPS server)
  quire_test(token_rate_test DEPS server)
  quire_test(server_metrics_test DEPS server TIMEOUT 600)
  foreach(name security tls metrics)
    add_test(NAME e2e_${name}_test
      COMMAND ${QUIRE_GRPC_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}_test.py)
    set_tests_properties(e2e_${name}_test PROPERTIES TIMEOUT 900 ENVIRONMENT
      "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${CMAKE_BINARY_DIR}/gen-python;QUIRE_SMOLLM2=${smollm2}")
  endforeach()
endif()
