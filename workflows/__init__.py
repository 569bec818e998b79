"""What the system runs: recipes, and the graph of steps they are made of."""
