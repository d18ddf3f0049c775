quire_test(scheduler_test DEPS scheduler)
