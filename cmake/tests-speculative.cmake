quire_test(speculative_test DEPS scheduler)
