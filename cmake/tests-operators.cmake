# Clients and operators against the engine, all at once; operators' calls to the daemon.
quire_test(engine_chaos_test DEPS scheduler TIMEOUT 600)
if(QUIRE_SERVER)
  quire_test(server_operators_test DEPS server TIMEOUT 600)
endif()
