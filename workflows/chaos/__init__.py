"""Kills a small run again and again, repeats its command, and compares what it made with a run that nobody killed."""
