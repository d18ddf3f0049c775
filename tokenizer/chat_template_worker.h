// tokenizer/chat_template_worker.h -- the Python program that renders chat templates, as text: one
// binary is all that has to be installed.
#pragma once

namespace quire {

// For `python3 -I -c <program>`; see chat_template_worker.cc for what it reads and writes.
extern const char kChatTemplateWorker[];

}  // namespace quire
