add_executable(grammar_bench ${CMAKE_SOURCE_DIR}/bench/grammar_bench.cc)
target_compile_options(grammar_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(grammar_bench PRIVATE sampling)
