// base/thread_name.h -- names of threads, as `top -H`, debuggers and Admin.GetServerInfo show them.
#pragma once

namespace quire {

// Of the calling thread; at most 15 characters, which is Linux's limit (pthread_setname_np).
void SetThreadName(const char* name);

}  // namespace quire
