// Attention over bfloat16 caches.
#include "attention_of_type.h"
#include "attention_types.h"

namespace tandem {

void attend_bfloat16(const AttentionCall& call) { attend_as<Bfloat16>(call); }

}  // namespace tandem
