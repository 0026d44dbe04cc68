"""What both roles share: sequences, batches, the step loop, sampling, stop conditions."""
