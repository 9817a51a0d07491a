"""Started by its path, with no site-packages and no package above it: only ``supervisor`` itself can be imported."""

import importlib
import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(here))
    importlib.import_module(f"{os.path.basename(here)}.guard").main(sys.argv[1])
