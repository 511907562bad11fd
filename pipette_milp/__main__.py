"""``python -m pipette_milp``."""

from pipette_milp.cli import main

if __name__ == "__main__":
    main()
