"""Charts as inline SVG, and the data of some of them."""
