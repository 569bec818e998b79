"""Estimates of a run's time, memory and disk, from the sizes that flow along its graph and a rate per step function."""
