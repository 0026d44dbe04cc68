"""The paged KV cache of one worker: who holds which block, and the tensors behind it."""
