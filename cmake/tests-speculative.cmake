quire_test(speculative_test DEPS scheduler)
quire_test(draft_control_test DEPS scheduler)
quire_test(rejection_test DEPS sampling)
quire_test(draft_proposer_test DEPS models TIMEOUT 300)
