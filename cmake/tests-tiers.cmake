# What outlives the process or is shared with others: hashes of other engines, pages in files.
foreach(name sha256_cbor_test page_file_store_test page_file_writer_test page_file_directory_test
        page_file_faults_test)
  quire_test(${name} DEPS paged_cache)
endforeach()
