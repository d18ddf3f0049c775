# The daemon, its protos and its clients: everything that may see gRPC or a socket.
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED CONFIG)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
find_package(ZLIB REQUIRED)

# proto: C++ of proto/**/*.proto, with the services; included as "quire/v1/quire.grpc.pb.h".
set(proto_out ${CMAKE_BINARY_DIR}/gen)
set(proto_files quire/v1/quire.proto grpc/reflection/v1/reflection.proto
                grpc/health/v1/health.proto smg/grpc/common/common.proto
                vllm/grpc/engine/vllm_engine.proto openengine/v1/openengine.proto
                inference/model_config.proto inference/grpc_service.proto)
set(proto_sources)
foreach(file ${proto_files})
  string(REGEX REPLACE "\\.proto$" "" stem ${file})
  set(outputs ${proto_out}/${stem}.pb.cc ${proto_out}/${stem}.pb.h
              ${proto_out}/${stem}.grpc.pb.cc ${proto_out}/${stem}.grpc.pb.h)
  add_custom_command(OUTPUT ${outputs}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${proto_out}
    COMMAND protobuf::protoc -I${CMAKE_SOURCE_DIR}/proto --cpp_out=${proto_out}
            --grpc_out=${proto_out}
            --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${file}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/${file}
    VERBATIM)
  list(APPEND proto_sources ${outputs})
endforeach()
add_custom_target(proto_sources DEPENDS ${proto_sources})
add_library(proto STATIC ${proto_sources})
add_dependencies(proto proto_sources)
target_include_directories(proto SYSTEM PUBLIC ${proto_out})
target_link_libraries(proto PUBLIC gRPC::grpc++ protobuf::libprotobuf)
set_property(GLOBAL APPEND_STRING PROPERTY quire_layers "proto:\n")

# The client library in C++; the CLI uses it. (clients/python is a package of its own.)
quire_module(clients DEPS base proto gRPC::grpc++)

quire_module(server DEPS clients models scheduler tokenizer sampling bench base proto gRPC::grpc++
             gRPC::grpc++_reflection Boost::headers OpenSSL::SSL
             spdlog::spdlog yaml-cpp CLI11::CLI11 PkgConfig::ZMQ
             PkgConfig::PROMETHEUS ZLIB::ZLIB)
target_compile_definitions(server PUBLIC BOOST_ASIO_NO_DEPRECATED
                           PRIVATE QUIRE_VERSION="${PROJECT_VERSION}")

add_executable(quire ${CMAKE_SOURCE_DIR}/server/main.cc)
target_compile_options(quire PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(quire PRIVATE server)
set_target_properties(quire PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
  # ThreadSanitizer does not know fences; Asio's only order handlers that are no other thread's.
  target_compile_definitions(server PUBLIC BOOST_ASIO_DISABLE_FENCED_BLOCK)
  target_compile_options(server PUBLIC -Wno-tsan)
endif()
