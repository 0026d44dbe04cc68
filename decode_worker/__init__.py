"""The decode role: admission, pull, continuous batching, preemption, local prefill."""
