# HTTP: transport by raw sockets, bodies without a daemon, the daemon over a scripted executor, and
# real clients against the real daemon.
if(QUIRE_SERVER)
  quire_test(json_slice_test DEPS base)
  quire_test(tool_calls_test DEPS server)
  foreach(name http_transport_test http_stream_test openai_bodies_test openai_answers_test
          http_daemon_test)
    quire_test(${name} DEPS server TIMEOUT 600)
  endforeach()

  # OpenAI's client from PyPI: deploy/fetch-http-clients.sh.
  add_test(NAME e2e_http_test
    COMMAND ${QUIRE_GRPC_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/http_test.py)
  set_tests_properties(e2e_http_test PROPERTIES TIMEOUT 900 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${CMAKE_BINARY_DIR}/gen-python;\
QUIRE_SMOLLM2=${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf;\
QUIRE_HTTP_CLIENTS=${CMAKE_SOURCE_DIR}/build/http-clients")

  add_test(NAME e2e_streams_test
    COMMAND ${QUIRE_GRPC_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/streams_test.py)
  set_tests_properties(e2e_streams_test PROPERTIES TIMEOUT 900 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${stubs};QUIRE_SMOLLM2=${smollm2}")

  # A load client from PyPI: deploy/fetch-guidellm.sh.
  add_test(NAME e2e_guidellm_test
    COMMAND ${QUIRE_GRPC_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/guidellm_test.py)
  set_tests_properties(e2e_guidellm_test PROPERTIES TIMEOUT 900 ENVIRONMENT
    "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${stubs};QUIRE_SMOLLM2=${smollm2};\
QUIRE_GUIDELLM=${CMAKE_SOURCE_DIR}/build/guidellm/bin/python")
endif()
