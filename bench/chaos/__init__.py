"""Faults on purpose under a steady load, with every answer compared to the undisturbed one."""
