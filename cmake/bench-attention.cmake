add_executable(attention_bench ${CMAKE_SOURCE_DIR}/bench/attention_bench.cc
               ${CMAKE_SOURCE_DIR}/bench/flags.cc ${CMAKE_SOURCE_DIR}/bench/statistics.cc)
target_compile_options(attention_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(attention_bench PRIVATE kernels)
