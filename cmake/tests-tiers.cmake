foreach(name sha256_cbor_test)
  quire_test(${name} DEPS paged_cache)
endforeach()
