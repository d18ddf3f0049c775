# Tests of server/: options, the daemon over a scripted executor, and the real daemon on the real
# model with a Python client.
if(QUIRE_SERVER)
  quire_test(options_test DEPS server)
  quire_test(branch_text_test DEPS server)
  quire_test(convert_prompt_test DEPS server)
  quire_test(heap_trimmer_test DEPS server)
  foreach(name server_test connection_limit_test server_refusals_test server_faults_test server_soak_test server_admin_test
          server_admin_actions_test server_admin_units_test server_decoding_test server_guided_test)
    quire_test(${name} DEPS server TIMEOUT 600)
  endforeach()

  add_custom_command(
    OUTPUT ${stubs}/quire/v1/quire_pb2.py ${stubs}/quire/v1/quire_pb2_grpc.py ${stubs}/quire.desc
    COMMAND ${CMAKE_COMMAND} -E make_directory ${stubs}
    COMMAND protobuf::protoc -I. --python_out=${stubs} --grpc_out=${stubs}
            --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_python_plugin> quire/v1/quire.proto
    COMMAND protobuf::protoc -I. --descriptor_set_out=${stubs}/quire.desc ${proto_files}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/quire/v1/quire.proto
    VERBATIM)
  add_custom_target(python_stubs ALL DEPENDS ${stubs}/quire/v1/quire_pb2.py)

  foreach(name generate decoding guided serve admin abuse)
    add_test(NAME e2e_${name}_test
      COMMAND ${QUIRE_GRPC_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}_test.py)
    set_tests_properties(e2e_${name}_test PROPERTIES TIMEOUT 900 ENVIRONMENT
      "QUIRE_BINARY=$<TARGET_FILE:quire>;QUIRE_STUBS=${stubs};QUIRE_SMOLLM2=${smollm2}")
  endforeach()
endif()
