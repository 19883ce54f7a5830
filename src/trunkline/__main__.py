"""Entry point of `python -m trunkline`: the command line."""

import sys

from trunkline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
