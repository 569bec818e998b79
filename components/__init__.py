"""The science: pure functions and modules over tensors and Arrow tables. Nothing here knows Ray."""
