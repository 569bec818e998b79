"""Kill processes of a small run at random, repeat its command, and compare its artifacts with an undisturbed run."""
