quire_test(base_test DEPS base)
quire_test(thread_pool_test DEPS base)
quire_test(bounded_queue_test DEPS base)
