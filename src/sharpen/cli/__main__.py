"""`python -m sharpen.cli` is `sharpen`."""

import sys

from .program import main

sys.exit(main())
