"""What a run would cost: sizes through the graph, rates that were measured or stated, seconds, memory, disk, money."""
