quire_test(scheduler_work_test DEPS scheduler)
