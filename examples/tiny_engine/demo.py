#!/usr/bin/env python3
"""Pageferry's demo: a real model, prefilled in one process and decoded in another; see --help."""

import sys

from tiny_engine.demo_main import main

if __name__ == "__main__":
    sys.exit(main())
