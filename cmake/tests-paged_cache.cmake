foreach(name page_pool_test page_pool_retention_test prefix_hash_test cache_layout_test cache_policy_test page_storage_test pool_toucher_test block_manager_test
        block_manager_cases_test block_manager_admin_test block_manager_tiers_test block_manager_model_test block_manager_golden_test paged_traces_test
        cache_files_test)
  quire_test(${name} DEPS paged_cache)
endforeach()
quire_test(block_manager_exhaustive_test DEPS paged_cache TIMEOUT 300)
quire_test(prefix_cases_test DEPS models TIMEOUT 300)
