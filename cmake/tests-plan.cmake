quire_test(plan_shapes_test DEPS models)
