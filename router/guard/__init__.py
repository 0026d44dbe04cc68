"""What may be asked and answered: policies, the check of prompts, the filter of answers."""
