// Attention over float8 (e4m3fn) caches.
#include "attention_of_type.h"
#include "attention_types.h"

namespace tandem {

void attend_float8(const AttentionCall& call) { attend_as<Float8Value>(call); }

}  // namespace tandem
