"""Systems as they are deployed: what they are made of, searching with one, and the folder that holds one."""
