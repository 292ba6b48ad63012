"""``python -m etesian``."""

import sys

from etesian.cli import main

sys.exit(main())
