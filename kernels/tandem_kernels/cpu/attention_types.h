// Attention by the type of the cache.
#pragma once

#include "attention_call.h"

namespace tandem {

void attend_float32(const AttentionCall& call);
void attend_bfloat16(const AttentionCall& call);
void attend_int8(const AttentionCall& call);
void attend_float8(const AttentionCall& call);

}  // namespace tandem
