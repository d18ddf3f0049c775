# KV events: what the cache records, the hub, the encodings and the ZeroMQ publisher.
quire_test(cache_events_test DEPS paged_cache)
if(QUIRE_SERVER)
  quire_test(kv_event_encoding_test DEPS server)
  quire_test(kv_event_hub_test DEPS server)
endif()
