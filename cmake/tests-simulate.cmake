quire_test(step_cost_test DEPS bench)
quire_test(trace_test DEPS bench)
quire_test(simulation_test DEPS bench)
