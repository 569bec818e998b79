"""Steps, one module each. A step fills one directory and runs components on Ray."""
