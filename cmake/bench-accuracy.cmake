add_executable(accuracy_bench ${CMAKE_SOURCE_DIR}/bench/accuracy_bench.cc)
target_compile_options(accuracy_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(accuracy_bench PRIVATE bench models tokenizer)
