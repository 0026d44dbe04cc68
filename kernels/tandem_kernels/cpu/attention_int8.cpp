// Attention over int8 caches.
#include "attention_of_type.h"
#include "attention_types.h"

namespace tandem {

void attend_int8(const AttentionCall& call) { attend_as<Int8Value>(call); }

}  // namespace tandem
