# KV events: what the cache records, the hub, the encodings and the ZeroMQ publisher. Clients: the
# Python package, in the environment that deploy/client-venv.sh makes.
quire_test(cache_events_test DEPS paged_cache)
if(QUIRE_SERVER)
  quire_test(kv_event_encoding_test DEPS server)
  quire_test(kv_event_hub_test DEPS server)
  quire_test(kv_event_daemon_test DEPS server TIMEOUT 600)
  quire_test(kv_event_messages_test DEPS server)
  quire_test(kv_event_services_test DEPS server TIMEOUT 600)
  quire_test(client_library_test DEPS server clients TIMEOUT 600)
  function(quire_events_e2e_test name python)
    add_test(NAME e2e_${name}_test
      COMMAND ${python} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}_test.py)
    set(model ${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf)
    if(DEFINED ENV{QUIRE_SMOLLM2})
      set(model $ENV{QUIRE_SMOLLM2})
    endif()
    set_tests_properties(e2e_${name}_test PROPERTIES TIMEOUT 900 ENVIRONMENT
      "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${CMAKE_BINARY_DIR}/gen-python;QUIRE_SMOLLM2=${model};QUIRE_TEMPLATE_PYTHON=/usr/bin/python3")
  endfunction()
  quire_events_e2e_test(events /usr/bin/python3)
  quire_events_e2e_test(python_client ${CMAKE_SOURCE_DIR}/build/client-venv/bin/python)
endif()
