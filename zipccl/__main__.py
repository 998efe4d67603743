"""Run the command line: python -m zipccl."""

import sys

from zipccl.cli import main

if __name__ == "__main__":
    sys.exit(main())
