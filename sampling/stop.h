// sampling/stop.h -- finds stop strings in text that arrives in pieces.
//
// A pure state machine, one per branch; called by the edge with detokenised text. Which match wins
// is a property of the whole text, not of its pieces: the one that starts earliest and, of several
// that start there, the shortest. So a short match inside a longer stop string waits until the
// longer one is completed or ruled out. Text that may still become a stop string is held back;
// everything else is delivered at once. What is delivered never ends within a character if the
// pieces and the stop strings don't.
//
//   text:       H e l l o \n \n U s e d
//   stop:                 \n \n U s e r :
//   held back:            ^--------^         until 'd' rules it out; then all of it is delivered
//
// Knuth-Morris-Pratt for each stop string: linear in the text, with at most kMaxStopStrings steps
// per byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

inline constexpr int32_t kMaxStopStrings = 64;
inline constexpr int32_t kMaxStopStringBytes = 1024;

// ERRORS: kInvalidArgument naming stop[i] if one is empty or too long, or there are too many.
absl::Status ValidateStopStrings(std::span<const std::string> stops);

class StopMatcher {
 public:
  struct Out {
    std::string text;      // to deliver now
    bool stopped = false;  // a stop string was found; nothing follows
    int matched = -1;      // its index in `stops`; of equal strings the first
  };

  // With include_stop_in_output the delivered text ends with the stop string, else before it.
  // REQUIRES: ValidateStopStrings(stops).ok().
  StopMatcher(std::vector<std::string> stops, bool include_stop_in_output);

  // The next piece. After a stop, returns no text.
  Out Push(std::string_view text);

  // No piece follows: delivers what is held back. A short match that waited for a longer one counts
  // now; ask stopped().
  std::string Flush();

  bool stopped() const { return stopped_; }
  int matched() const { return stopped_ ? found_ : -1; }
  // Bytes of all pushed text up to the end of the match: the token that brought this byte is the
  // last one to keep. -1 before a stop.
  int64_t match_end() const { return stopped_ ? found_end_ : -1; }

 private:
  struct Pattern {
    std::string text;
    std::vector<int32_t> fail;  // [size + 1]: longest border of the first i bytes
    int32_t matched = 0;        // longest prefix that the text so far ends with
  };

  void Step(char c);
  // Where the earliest stop string may start that isn't completed yet.
  int64_t FirstOpenStart() const;
  std::string Take(int64_t end);

  std::vector<Pattern> patterns_;
  bool include_stop_;
  bool stopped_ = false;
  int found_ = -1;  // best completed match, or -1
  int64_t found_start_ = 0;
  int64_t found_end_ = 0;
  int64_t length_ = 0;     // bytes pushed
  int64_t delivered_ = 0;  // bytes given out
  std::string held_;       // text[delivered_, length_)
};

}  // namespace quire
