"""Code for speed and memory: gathering over workers, encoding in chunks, fast layers for a CPU, the roofline."""
