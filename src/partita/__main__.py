"""`python -m partita` is the command `partita`."""

import sys

from partita.commands import main

sys.exit(main())
