"""`python -m kcl` is `kcl`."""

import sys

from kcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
