"""`python -m workflows` in a checkout: the same program as `sparring`."""

import sys

# Only here is this folder the package `workflows`. Everything else imports it as `sparring.workflows`.
from sparring.__main__ import command

if __name__ == "__main__":
    sys.exit(command())
