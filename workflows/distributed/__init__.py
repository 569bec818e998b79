"""Machines: the cluster profile, resources, the map over shards, the training workers, the nodes."""
