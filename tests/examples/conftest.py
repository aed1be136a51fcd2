"""Examples import one another as programs in one folder do."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))
