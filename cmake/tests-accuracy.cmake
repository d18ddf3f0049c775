quire_test(logit_stats_test DEPS bench)
