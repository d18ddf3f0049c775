quire_test(scheduler_test DEPS scheduler)
quire_test(scheduler_simulation_test DEPS scheduler)
