# Tests of the gRPC services that speak other engines' protos: translations, and the real daemon with
# clients from PyPI (deploy/make-grpc-clients.sh).
if(QUIRE_SERVER)
  quire_test(grpc_requests_test DEPS server)
  quire_test(grpc_answers_test DEPS server)
  quire_test(error_words_test DEPS server TIMEOUT 600)

  add_custom_command(
    OUTPUT ${stubs}/others.desc
    COMMAND ${CMAKE_COMMAND} -E make_directory ${stubs}
    COMMAND protobuf::protoc -I. --descriptor_set_out=${stubs}/others.desc
            smg/grpc/common/common.proto vllm/grpc/engine/vllm_engine.proto
            inference/model_config.proto inference/grpc_service.proto
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/smg/grpc/common/common.proto
            ${CMAKE_SOURCE_DIR}/proto/vllm/grpc/engine/vllm_engine.proto
            ${CMAKE_SOURCE_DIR}/proto/inference/model_config.proto
            ${CMAKE_SOURCE_DIR}/proto/inference/grpc_service.proto
    VERBATIM)
  add_custom_target(other_descriptors ALL DEPENDS ${stubs}/others.desc)

  set(grpc_clients ${CMAKE_SOURCE_DIR}/build/grpc-clients/bin/python)
  foreach(name vllm_engine kv_events kserve gateway openengine)
    set(python ${grpc_clients})
    if(name STREQUAL "openengine")
      set(python ${QUIRE_GRPC_PYTHON})  # knows what reflection tells, and no more
    endif()
    add_test(NAME e2e_${name}_test COMMAND ${python} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}_test.py)
    set_tests_properties(e2e_${name}_test PROPERTIES TIMEOUT 900 ENVIRONMENT
      "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${stubs};QUIRE_SMOLLM2=${smollm2}")
  endforeach()
endif()
