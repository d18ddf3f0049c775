add_executable(scheduler_bench ${CMAKE_SOURCE_DIR}/bench/scheduler_bench.cc)
target_compile_options(scheduler_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(scheduler_bench PRIVATE scheduler)
add_executable(branching_bench ${CMAKE_SOURCE_DIR}/bench/branching_bench.cc
               ${CMAKE_SOURCE_DIR}/bench/statistics.cc)
target_compile_options(branching_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(branching_bench PRIVATE models tokenizer)
