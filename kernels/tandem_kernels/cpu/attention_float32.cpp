// Attention over float32 caches.
#include "attention_of_type.h"
#include "attention_types.h"

namespace tandem {

void attend_float32(const AttentionCall& call) { attend_as<float>(call); }

}  // namespace tandem
